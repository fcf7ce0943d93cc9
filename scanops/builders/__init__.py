"""The ways to compile a kernel; ``scanops.build`` chooses one."""
