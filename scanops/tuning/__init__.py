"""Measured plans: ``scanops tune`` measures candidates on a GPU, and kernels built there use the fastest.

``files`` reads and writes tuning files, ``choice`` finds and checks the entry for a spec, ``experiment`` decides
whether a plan is faster than the planner's, ``timing`` times runs on the GPU. Without an entry the planner's plan is
used, which is the same on every machine.
"""
