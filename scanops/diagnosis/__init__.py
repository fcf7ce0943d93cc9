"""What people are told: of this machine, of a kernel before it runs, of a request that hits or misses."""
