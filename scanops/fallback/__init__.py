"""Scans without a kernel: of torch's operations, of a loop in Python, and how far a result is from the exact one."""
