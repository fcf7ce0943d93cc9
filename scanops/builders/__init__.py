"""Builders: ``scanops.builders.build.build`` compiles a kernel, to a library or a cubin.

``inline`` calls torch's load_inline, ``direct`` the compilers themselves, ``nvrtc`` NVRTC; ``toolchain`` finds
compilers, ``programs`` runs them. Each of the three has two functions: ``require``, which raises what it lacks for a
target, and ``build``.
"""
