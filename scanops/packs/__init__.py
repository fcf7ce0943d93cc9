"""Packs: kernels built in one place to be run in others, as a folder, an archive or a wheel."""
