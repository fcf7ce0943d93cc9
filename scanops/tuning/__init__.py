"""Measured plans: ``scanops tune`` measures candidates on a GPU, and kernels built there use the fastest.

``files`` reads and writes tuning files, and finds and checks the entry for a spec; ``experiment`` decides whether a
plan is faster than the planner's. Without an entry the planner's plan is
used, which is the same on every machine.
"""
