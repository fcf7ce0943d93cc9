"""Measured plans: what ``scanops tune`` finds on a GPU, and what the planner then prefers there.

    candidates -> built, checked, timed -> an entry of a JSON file -> the plan of a kernel

``files`` reads and writes entries, ``choice`` selects the plan of a spec, ``experiment`` decides whether another plan is
faster than the planner's, and ``timing`` measures runs on the GPU. Without an entry the planner's own plan is used, which
is the same on every machine.
"""
