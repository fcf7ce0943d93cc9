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
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import scanops
from scanops import build_request
from scanops.codegen.kernel_key import KernelKey
from scanops.store.entry import FILES, MANIFEST

ROOT = Path(__file__).parents[2]
# folder in the tree -> folder in the wheel: the mapping that pyproject.toml makes
FOLDERS = {"scanops": "scanops", "codegen": "scanops/codegen", "templates": "scanops/templates"}
SHIPPED = {".py", ".j2", ".cuh", ".json", ".h", ".cpp", ".cu"}
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


PREBUILT = "scanops/runtime/native/prebuilt/native-torch0-0123456789abcdef"


def run(command: Sequence[str | Path], directory: Path, **changes: str) -> str:
    # Nothing of this test run may reach the child: PYTHONPATH would let the tree stand in for the wheel.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | changes
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, directory: Path, **changes: str) -> Path:
    """Call one hook of the build backend in ``source``; the environment's own setuptools serves, nothing is fetched."""
    return directory / run([sys.executable, "-c", BUILD, kind, directory], source, **changes).splitlines()[-1]


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
    entry = work / "store" / Path(PREBUILT).name
    entry.mkdir(parents=True)
    for name in (MANIFEST, *FILES):
        (entry / name).touch()
    return build("build_wheel", work / sdist.name.removesuffix(".tar.gz"), work, SCANOPS_PREBUILT=str(entry.parent))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of a fresh environment: the wheel, and of this one nothing but what the wheel declares."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    scripts = home / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", scripts / "python"]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], home)
    (site_packages,) = home.glob("lib/python*/site-packages")
    (own,) = metadata.distributions(name="scanops", path=[str(site_packages)])
    declared: dict[str, metadata.Distribution] = {}
    waiting = list(own.requires or ())
    while waiting:
        needed = Requirement(waiting.pop())
        if needed.name in declared or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        declared[needed.name] = found = metadata.distribution(needed.name)
        waiting += found.requires or ()
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site_packages / top).exists():
                (site_packages / top).symlink_to(found.locate_file(top))  # type: ignore[arg-type]
    return scripts


def test_wheel_holds_exactly_what_the_tree_holds(wheel: Path) -> None:
    expected = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SHIPPED or path.name == "py.typed"
    } | {"scanops/built.py", *(f"{PREBUILT}/{name}" for name in (MANIFEST, *FILES))}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names == expected, "name the sub-package, or the pattern of the data files, in pyproject.toml"
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().translate({45: 95, 46: 95})}.whl")


def test_wheels_are_reproducible(tmp_path: Path) -> None:
    """SOURCE_DATE_EPOCH gives the same bytes, whenever and wherever the tree was written."""
    built = []
    for name, seconds in (("one", 1_000_000_000), ("two", 1_700_000_000)):
        tree = tmp_path / name
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
            shutil.copy(ROOT / file, tree)
        for path in tree.rglob("*"):
            os.utime(path, (seconds, seconds))
        built.append(build("build_wheel", tree, tmp_path, SOURCE_DATE_EPOCH="1600000000").read_bytes())
    assert built[0] == built[1]


def test_the_version_is_written_in_one_place_and_cited(wheel: Path) -> None:
    assert wheel.name.startswith(f"scanops-{scanops.__version__}-")
    assert f"version: {scanops.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_wheel_carries_the_digest_of_its_sources(installed: Path, tmp_path: Path) -> None:
    program = (
        "from scanops import build_request\n"
        "read, build_request.source_digests = build_request.source_digests, None\n"  # a lookup reads no source
        "from scanops import ScanSpec\n"
        "from scanops.codegen.kernel_key import KernelKey\n"
        "keys = [KernelKey(ScanSpec.parse('sum-f32-n24'), target) for target in ('cpu', 'sm_90')]\n"
        "print(*build_request.store_keys(keys[0]), *build_request.store_keys(keys[1]), sep='\\n')\n"
        "build_request.source_digests = read\n"
        "print(build_request.store_keys(keys[0]) == [build_request.sources_key(keys[0])])\n"
    )
    # A pack from a checkout is found by the wheel of the same sources, and by the checkout.
    spec = scanops.ScanSpec.parse("sum-f32-n24")
    keys = [build_request.sources_key(KernelKey(spec, target)) for target in ("cpu", "sm_90")]
    assert run([installed / "python", "-c", program], tmp_path).splitlines() == [*keys, "True"]
    assert build_request.store_keys(KernelKey(spec, "cpu")) == keys[:1]


def test_the_installed_wheel_works_without_any_program(installed: Path, tmp_path: Path) -> None:
    """No compiler, no ninja: scans are PyTorch's, and the doctor says so. The import needs neither torch nor jinja2."""
    nothing = {"PATH": "", "HOME": str(tmp_path), "SCANOPS_STORE": f"{tmp_path}/store", "CUDA_VISIBLE_DEVICES": "-1"}
    program = "import sys, scanops; print({'torch', 'jinja2'} & {*sys.modules}, scanops.__file__);"
    program += "import torch; print(scanops.cumsum(torch.ones(3), 0).tolist())"
    printed = run([installed / "python", "-c", program], tmp_path, **nothing)
    assert printed.startswith(f"set() {installed.parent}") and printed.endswith("[1.0, 2.0, 3.0]\n")
    said = {"doctor": "torch's own operations", "demo": "PyTorch's operators", "generate sum-f32-n32": "__global__"}
    for words, part in said.items():
        assert part in run([installed / "scanops", *words.split()], tmp_path, **nothing)
