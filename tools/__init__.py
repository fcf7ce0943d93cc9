"""Generators of committed files, and the figures of the project's structure. Not in the wheel."""
