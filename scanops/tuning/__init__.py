"""Measured plans: what ``scanops tune`` finds out on a GPU, and what the planner then prefers there.

    candidates -> built, checked, measured -> an entry of a plain JSON file -> the plan of a kernel

``files`` reads and writes entries, ``choice`` says which plan counts, ``experiment`` measures, ``gpu`` is what it
measures with. Without an entry the planner's own plan counts, which is the same on every machine.
"""
