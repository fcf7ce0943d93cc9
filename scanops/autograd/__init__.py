"""Gradients: what a call keeps for them, the scans that compute them, the nodes of calls that C++ has served."""
