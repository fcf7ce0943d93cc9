"""``python -m scanops.runtime.native``: build the C++ fast path into the store, and print its path."""

from __future__ import annotations

from scanops.runtime.native import building

if __name__ == "__main__":
    print(building.built().directory)
