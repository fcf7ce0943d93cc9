"""A call served by kernels: which one, what becomes of it where there is none, and what a repeated call skips."""
