"""Build the C++ call path for other versions of torch and Python; `make wheel` puts what it finds into the wheel.

    python -m tools.prebuilt 2.11.0 2.15.0 --python python3.12

Each version is installed into a new environment, which is removed afterwards. Needs g++ and the headers of Python, and
no package besides Python's own. A library needs the C library of the machine that it was built on, or a later one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.against import ROOT, install

__all__ = ["main"]

STORE = ROOT / "build" / "native"  # as in the Makefile


def main(arguments: Sequence[str] | None = None) -> int:
    """Build a library for each version and print its folder in the store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("torch", nargs="+", metavar="TORCH", help="version to install, such as 2.15.0")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the new environments")
    given = parser.parse_args(arguments)
    for version in given.torch:
        with tempfile.TemporaryDirectory(prefix="scanops-prebuilt-") as folder:
            python = install(Path(folder), given.python, version, extra="")
            environment = {**os.environ, "SCANOPS_STORE": str(STORE)}
            subprocess.run([python, "-m", "scanops.runtime.native.building"], check=True, env=environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
