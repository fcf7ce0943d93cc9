"""Pointwise expressions around a scan: the graph, its C++ and derivatives, and the operator rows of fused kernels."""
