"""Run the tests with another version of torch or Python, and record the outcome in docs/versions.md.

Also records which builders build a kernel for sm_90 there, NVRTC with an empty PATH.

    make test-against TORCH=2.15.0
    python -m tools.against 2.15.0 --python python3.14 tests/torch_integration tests/native
    python -m tools.against --here --gpu --builder nvrtc

The first two install torch, scanops and what the tests need into a new environment, which is removed at the end; the
last tests the environment that it runs in. Needs no package besides Python's own; exits with 1 where a test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

__all__ = ["main", "table"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- table: written by python -m tools.against -->\n", "<!-- table end -->\n"
# What depends most on torch and Python; the numbers of kernels follow from their text, which is the same everywhere.
TESTS = (
    "tests/torch_integration",
    "tests/native",
    "tests/requests/test_gradients.py",
    "tests/requests/test_torch_semantics.py",
)
EMULATED = "emulated"
BUILDERS = (EMULATED, "load_inline", "nvrtc", "nvcc")
KERNEL = ("sum-f32-n32768", "--target", "sm_90")
ASK = """
import json, platform, torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
print(json.dumps({"torch": str(torch.__version__), "python": platform.python_version(), "device": gpu}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, record a row and return 1 where a test fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("torch", nargs="?", metavar="TORCH", help="version to install, such as 2.15.0")
    parser.add_argument("tests", nargs="*", help=f"default: {' '.join(TESTS)}; with --gpu: tests")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the new environment")
    parser.add_argument("--here", action="store_true", help="test the environment that this runs in")
    parser.add_argument("--gpu", action="store_true", help="run the tests that need a GPU")
    parser.add_argument("--builder", default="load_inline", choices=BUILDERS[1:], help="of kernels, with --gpu")
    parser.add_argument("--workers", default="2", help="processes that run tests")
    given = parser.parse_intermixed_args(arguments)  # options between versions and tests
    if given.here:
        given.tests = ([given.torch] if given.torch else []) + given.tests
        row = run_tests(Path(sys.executable), given)
    elif given.torch is None:
        parser.error("name a version of torch, or --here")
    else:
        with tempfile.TemporaryDirectory(prefix="scanops-against-") as folder:
            row = run_tests(install(Path(folder), given.python, given.torch), given)
    record(row)
    print(json.dumps(row))
    return int(row["failed"] > 0)


def install(folder: Path, python: str, torch: str, extra: str = "[test]") -> Path:
    """Return the interpreter of a new environment with this torch, and with scanops as it is here, with an extra."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    interpreter, limits = folder / "venv" / "bin" / "python", folder / "constraints.txt"
    own = ("torch==", "setuptools==", "nvidia-")  # torch may want others of these
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    limits.write_text("".join(line for line in lines if not line.startswith(own)), encoding="utf-8")
    pip: list[str | Path] = [interpreter, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--constraint", limits, f"torch=={torch}", "numpy", "setuptools>=77.0.3"], check=True)
    subprocess.run([*pip, "--constraint", limits, "--no-build-isolation", "--editable", f"{ROOT}{extra}"], check=True)
    return interpreter


def run_tests(python: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run the tests in an environment and return the row of the table that they make."""
    facts = json.loads(subprocess.run([python, "-c", ASK], check=True, capture_output=True, text=True).stdout)
    paths = given.tests or (["tests"] if given.gpu else list(TESTS))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = ["-q", "-n", given.workers, "--dist", "worksteal", f"--junitxml={report}", "-m"]
        words.append("gpu" if given.gpu else "not gpu")
        builder = {"SCANOPS_BUILDER": given.builder} if given.gpu else {}
        done = subprocess.run([python, "-m", "pytest", *words, *paths], cwd=ROOT, env={**os.environ, **builder})
        if not report.is_file():
            raise SystemExit(f"pytest ended with {done.returncode} and wrote no report")
        suite = next(ElementTree.parse(report).iter("testsuite"))
    total, failed, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    counts = {"passed": total - failed - errors - skipped, "failed": failed + errors, "skipped": skipped}
    names = [
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    ran = {
        "failures": names,
        "builder": given.builder if given.gpu else EMULATED,
        "tests": paths,
        "seconds": round(float(suite.get("time", 0))),
        "builds": [] if given.gpu else [name for name in BUILDERS[1:] if builds(python, name)],
    }
    return {**facts, **ran, **counts, "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"}


def builds(python: Path, builder: str) -> bool:
    """Return whether a builder builds a kernel in an environment. NVRTC has to do without any program."""
    with tempfile.TemporaryDirectory() as store:
        changes = {"SCANOPS_BUILDER": builder, "SCANOPS_STORE": store, "PYTHONSAFEPATH": "1"}
        changes |= {"PATH": ""} if builder == "nvrtc" else {}
        command = [str(python), "-m", "scanops", "build", *KERNEL]
        return subprocess.run(command, cwd=store, env={**os.environ, **changes}).returncode == 0


def record(row: Mapping[str, Any]) -> None:
    """Put a row in the place of that of the same versions, device and builder, and write the page's table."""
    rows = [each for each in _rows() if _key(each) != _key(row)]
    rows = sorted([*rows, dict(row)], key=_key)
    RESULTS.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.split(BEGIN)[0] + BEGIN + table() + END + text.split(END)[1], encoding="utf-8")


def table() -> str:
    """Return the table of docs/versions.md: versions by builders, as they were recorded."""
    rows = _rows()
    lines = ["| torch | Python | emulated on a CPU | load_inline | NVRTC | nvcc |", "|---|---|---|---|---|---|"]
    for versions in dict.fromkeys((each["torch"], each["python"]) for each in rows):
        here = [each for each in rows if (each["torch"], each["python"]) == versions]
        built = {name: "builds, not run" for each in here for name in each["builds"]}
        cells = [
            "; ".join(_cell(each) for each in here if each["builder"] == name) or built.get(name, "not run")
            for name in BUILDERS
        ]
        lines.append(f"| {' | '.join((*versions, *cells))} |")
    for each in (each for each in rows if each["failed"]):
        names = ", ".join(f"`{name}`" for name in each.get("failures", ())) or "that run kept no names"
        lines += ["", f"Failed with torch {each['torch']} on {each['device']}, {each['date']}: {names}."]
    return "".join(f"{line}\n" for line in lines)


def _cell(row: Mapping[str, Any]) -> str:
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f"{row['passed']} passed{failed}" + (f" on {row['device']}" if row["builder"] != EMULATED else "")


def _rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    return found


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    versions = (row["torch"].partition("+")[0], row["python"].rpartition(".")[0])
    numbers = [tuple(int(part) if part.isdigit() else -1 for part in each.split(".")) for each in versions]
    return (*numbers, row["torch"], row["builder"], row["device"])


if __name__ == "__main__":
    sys.exit(main())
