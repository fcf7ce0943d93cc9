"""The kernels that a program uses: recorded as it runs, written down as a spec file."""
