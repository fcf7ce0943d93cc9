"""Versions of what a kernel offers to the code that loads it, raised when that changes."""

from __future__ import annotations

# Version of the C interface, which scanops_abi() of a library returns; templates and the native call path get it from
# here. Raise it when an exported function changes.
ABI = 6
SCHEMA = 1  # of manifest.json; part of the identity, so that two versions of scanops can share a store
