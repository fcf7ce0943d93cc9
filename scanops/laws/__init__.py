"""Whether what somebody wrote is an operator that can be scanned with, found out on a CPU."""
