"""Build steps of the wheel.

``scanops/built.py`` holds the digests of the sources that kernels follow from. SCANOPS_PREBUILT names a store: the C++
call paths in it, each for one torch and Python, become part of the wheel, which is then one for this platform alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_STORE = os.environ.get("SCANOPS_PREBUILT")
PREBUILT = [each.parent for each in Path(_STORE).glob("native-*/manifest.json")] if _STORE else []


class BuildWithDigests(build_py):
    """Write ``scanops/built.py``, so that a lookup in the store need not read any source."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout changes, and reads its sources
        package = Path(self.build_lib) / "scanops"
        for entry in PREBUILT:
            shutil.copytree(entry, package / "runtime" / "native" / "prebuilt" / entry.name)
        sys.path.insert(0, str(Path(__file__).parent))
        from scanops.files import TREES, digest

        digests = {name: digest(package / name) for name in TREES}
        lines = "".join(f'    "{name}": "{value}",\n' for name, value in digests.items())
        (package / "built.py").write_text(
            '"""Written when this wheel was built: SHA-256 over the sources in each folder."""\n\n'
            f"from __future__ import annotations\n\nDIGESTS = {{\n{lines}}}\n",
            encoding="utf-8",
        )


class WithLibraries(Distribution):
    """A distribution that is one for this platform alone if it holds libraries."""

    def has_ext_modules(self) -> bool:
        return bool(PREBUILT)


class WheelOfPlatform(bdist_wheel):
    """Name no Python in the wheel's tag: a library that does not fit the Python in use is passed over."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(distclass=WithLibraries, cmdclass={"build_py": BuildWithDigests, "bdist_wheel": WheelOfPlatform})
