"""Builders: ``scanops.builders.build.build`` compiles a kernel by the first builder that is available for its target.

``inline`` calls torch's load_inline, ``direct`` the compilers themselves; ``toolchain`` finds compilers, ``programs``
runs them.
"""
