"""One step more than pyproject.toml can say: a wheel carries the digests of the sources that kernels follow from."""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

TREES = ("codegen", "templates", "emulator")


class BuildWithDigests(build_py):
    """With ``scanops/built.py``, from which a look-up in the store knows them without reading any source."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout changes
        package = Path(self.build_lib) / "scanops"
        digest = runpy.run_path(str(package / "sources.py"))["digest"]
        digests = {name: digest(str(package / name)) for name in TREES}
        lines = "".join(f'    "{name}": "{value}",\n' for name, value in digests.items())
        (package / "built.py").write_text(
            '"""Written when this wheel was built: SHA-256 over the sources in each folder."""\n\n'
            f"from __future__ import annotations\n\nDIGESTS = {{\n{lines}}}\n",
            encoding="utf-8",
        )


setup(cmdclass={"build_py": BuildWithDigests})
