"""``python -m scanops`` is the ``scanops`` command."""

from __future__ import annotations

from scanops.cli import main

if __name__ == "__main__":
    main(prog_name="scanops")
