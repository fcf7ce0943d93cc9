"""Build step of the wheel: ``scanops/built.py`` holds the digests of the sources that kernels follow from."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithDigests(build_py):
    """Write ``scanops/built.py``, so that a lookup in the store need not read or render any source."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout changes, and renders
        package = Path(self.build_lib) / "scanops"
        sys.path.insert(0, str(Path(__file__).parent))
        from scanops.files import TREES, digest

        digests = {name: digest(package / name) for name in TREES}
        lines = "".join(f'    "{name}": "{value}",\n' for name, value in digests.items())
        (package / "built.py").write_text(
            '"""Written when this wheel was built: SHA-256 over the sources in each folder."""\n\n'
            f"from __future__ import annotations\n\nDIGESTS = {{\n{lines}}}\n",
            encoding="utf-8",
        )


setup(cmdclass={"build_py": BuildWithDigests})
