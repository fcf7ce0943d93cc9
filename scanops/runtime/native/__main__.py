"""``python -m scanops.runtime.native``: have the native part of calls in the store, and print where."""

from __future__ import annotations

from scanops.runtime.native import building

if __name__ == "__main__":
    print(building.built().directory)
