"""Importing costs nothing and needs nothing; generating needs no torch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.scripts import ran

# Events of the interpreter while the second half runs. Bytecode is looked for and not written.
WATCHED = """
import json, os, sys
events = []
sys.addaudithook(lambda name, details: events.append((name, [str(detail) for detail in details])))
import scanops
count = len(events)
seen = events[:count]
print(json.dumps({"events": seen, "modules": sorted(sys.modules)}))
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import scanops
spec = scanops.ScanSpec(op="prod", dtype="bfloat16", length=4096, mask="bool")
text = scanops.generate(spec, target="sm_80")
assert "scan_kernel" in text and scanops.make_plan(spec).strategy == "block"
try:
    scanops.generate(spec, "sm_12")
except scanops.errors.UnsupportedRequest as error:
    assert error.hint
kernel = scanops.compile(scanops.ScanSpec(op="sum", dtype="float32", length=9), "cpu")
assert kernel.path.is_file() and kernel.source_path.is_file() and kernel.code
assert sorted(dir(scanops)) == sorted(scanops.__all__)
print(len(text))
"""


def python(code: str, folder: Path) -> str:
    """What a new interpreter prints, its home and its store an empty folder."""
    home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "SCANOPS_STORE": str(folder / "store")}
    more = {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    return ran(sys.executable, "-c", code, folder=folder, **home, **more).stdout


def test_import_loads_nothing_heavy_and_reads_modules_alone(tmp_path: Path) -> None:
    watched = json.loads(python(WATCHED, tmp_path))
    assert not list(tmp_path.iterdir())
    heavy = {"torch", "jinja2", "numpy", "ctypes", "subprocess", "platformdirs", "filelock", "click", "rich"}
    assert not heavy & set(watched["modules"])
    assert [name for name in watched["modules"] if name.startswith("scanops.")] == ["scanops._version"]
    opened = [details for name, details in watched["events"] if name == "open"]
    assert opened, "the hook saw nothing"
    for path, mode, flags in opened:
        assert Path(path).suffix in (".py", ".pyc"), path
        assert mode in ("r", "rb", "None") and int(flags) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0
    touching = ("os.mkdir", "os.remove", "os.rename", "shutil.", "subprocess.", "os.system", "os.posix_spawn",
                "ctypes.", "socket.", "os.putenv", "os.fork", "os.exec")  # fmt: skip
    assert [name for name, _ in watched["events"] if name.startswith(touching)] == []


def test_generating_and_building_need_no_torch(tmp_path: Path) -> None:
    assert int(python(WITHOUT_TORCH, tmp_path)) > 1000


def test_an_unknown_name_says_what_there_is() -> None:
    import scanops

    with pytest.raises(AttributeError, match=r"no attribute 'cumlogical'.*cumsum"):
        scanops.cumlogical  # noqa: B018
