"""Builders: ``scanops.builders.build.build`` compiles a kernel, by load_inline or without it.

``inline`` calls torch's load_inline, ``direct`` the compilers themselves; ``toolchain`` finds compilers, ``programs``
runs them.
"""
