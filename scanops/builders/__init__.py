"""The ways to compile a kernel; ``scanops.builders.build`` chooses one."""
