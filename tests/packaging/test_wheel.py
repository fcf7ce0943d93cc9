"""The wheel holds what the tree holds, under one name, and works in another environment from another directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from scanops import artifact

ROOT = Path(__file__).parents[2]
# folder in the tree -> folder in the wheel: the mapping that pyproject.toml makes
FOLDERS = {"scanops": "scanops", "codegen": "scanops/codegen", "templates": "scanops/templates"}
SHIPPED = {".py", ".j2", ".json", ".h", ".cpp", ".cu"}
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def run(command: Sequence[str | Path], directory: Path) -> str:
    # Nothing of this test run may reach the child: PYTHONPATH would let the tree stand in for the wheel.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, directory: Path) -> Path:
    """Call one hook of the build backend in ``source``; the environment's own setuptools serves, nothing is fetched."""
    return directory / run([sys.executable, "-c", BUILD, kind, directory], source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the unpacked sdist of a copy of the tree: old build folders of the tree play no part."""
    work = tmp_path_factory.mktemp("wheel")
    tree = work / "tree"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    sdist = build("build_sdist", tree, work)
    with tarfile.open(sdist) as archive:
        archive.extractall(work)
    return build("build_wheel", work / sdist.name.removesuffix(".tar.gz"), work)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of a fresh environment: the wheel, and by a path file the dependencies of this one."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    scripts = home / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", scripts / "python"]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], home)
    # Path files found by way of a path file are not read, so this environment's editable scanops stays out.
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text("\n".join(paths))
    return scripts


def test_wheel_holds_exactly_what_the_tree_holds(wheel: Path) -> None:
    expected = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SHIPPED or path.name == "py.typed"
    } | {"scanops/built.py"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names == expected, "name the sub-package, or the pattern of the data files, in pyproject.toml"


def test_wheel_carries_the_digest_of_its_sources(installed: Path, tmp_path: Path) -> None:
    program = (
        "from scanops import artifact\n"
        "read, artifact.source_digests = artifact.source_digests, None\n"  # a lookup reads no source
        "spec = artifact.ScanSpec.parse('sum-f32-n24')\n"
        "print(*(artifact.store_key(spec, target) for target in ('cpu', 'sm_90')), sep='\\n')\n"
        "artifact.source_digests = read\n"
        "print(artifact.store_key(spec, 'cpu') == artifact.sources_key(spec, 'cpu'))\n"
    )
    # A pack from a checkout is found by the wheel of the same sources; the checkout itself renders.
    spec = artifact.ScanSpec.parse("sum-f32-n24")
    keys = [artifact.sources_key(spec, target) for target in ("cpu", "sm_90")]
    assert run([installed / "python", "-c", program], tmp_path).splitlines() == [*keys, "True"]
    assert artifact.store_key(spec, "cpu") is None


def test_the_installed_wheel_generates_without_torch(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys, scanops\n"
        "print(scanops.__file__, [name for name in ('torch', 'jinja2') if name in sys.modules])\n"
        "sys.modules['torch'] = None\n"  # importing it now fails
        "print(scanops.generate(scanops.ScanSpec(op='sum', dtype='float32', length=32)))\n"
    )
    first, source = run([installed / "python", "-c", program], tmp_path).split("\n", 1)
    location, imported = first.split(" ", 1)
    assert Path(location).is_relative_to(installed.parent) and imported == "[]"
    assert "__global__" in source
    assert "generate" in run([installed / "scanops", "--help"], tmp_path)
