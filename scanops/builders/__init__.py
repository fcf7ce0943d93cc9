"""Compilers: ``scanops.builders.build`` compiles a kernel with load_inline, nvcc or g++."""
