"""``scanops doctor``: what this machine has, what it lacks, and what to type. Builds, creates and changes nothing."""

from __future__ import annotations

import ctypes
import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import click

from scanops import environment
from scanops.artifact import CPU
from scanops.builders import toolchain
from scanops.cli import findings
from scanops.cli.findings import Finding
from scanops.cli.output import Command, print_json, say, working
from scanops.codegen.targets import target_of_capability
from scanops.errors import BadStoreEntry, BadTuning, BuildFailure, ScanopsError, UnsupportedRequest
from scanops.store.root import check_root
from scanops.tuning.files import read as read_plans

__all__ = ["ABILITIES", "Report", "command", "examine", "native_calls"]

ABILITIES = {  # the fastest way to run a scan first
    "run": "run kernels on its GPU",
    "build": "build kernels for GPUs",
    "emulate": "emulate kernels on the CPU",
    "compose": "run scans as torch's own operations",
}
_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}
_ENTRY = re.compile(r".+-[0-9a-f]{16}")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_GET_TORCH = "pip install torch (pytorch.org/get-started has the line for each CUDA version)"
_GET_DRIVER = "nothing, unless there is an NVIDIA GPU: then install NVIDIA's driver and check CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings, and what they amount to."""

    findings: tuple[Finding, ...]
    abilities: dict[str, bool]  # what this machine can do, by the names of ABILITIES
    variables: tuple[tuple[environment.Variable, str | None], ...]  # each with its value

    @property
    def ok(self) -> bool:
        """Whether scans can run in some way and nothing is broken."""
        runs = any(able for name, able in self.abilities.items() if name != "build")
        return runs and all(finding.status != "broken" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The report in one sentence."""
        can = [ABILITIES[name] for name, able in self.abilities.items() if able]
        cannot = [ABILITIES[name] for name, able in self.abilities.items() if not able]
        broken = [finding.name for finding in self.findings if finding.status == "broken"]
        parts = [f"This machine can {', '.join(can) or 'run nothing yet'}"]
        parts += [f"it cannot {', '.join(cannot)}"] if cannot else []
        parts += [f"broken: {', '.join(broken)}"] if broken else []
        return "; ".join(parts) + "."


@click.command("doctor", cls=Command, example="scanops doctor\nscanops doctor --json > machine.json")
def command(as_json: bool) -> None:
    """Show what this machine has and lacks for scanops.

    Says what to type for anything that is missing or broken, and lists the environment variables. Exits with 0 when
    scans can run here in some way and nothing is broken; something that is merely missing is no failure.
    """
    with working("examining this machine"):
        report = examine()
    if as_json:
        print_json(_fields(report))
    else:
        _print(report)
    click.get_current_context().exit(0 if report.ok else 1)


def _fields(report: Report) -> dict[str, object]:
    return {
        "ok": report.ok,
        "verdict": report.verdict,
        "can": report.abilities,
        "checks": [
            {"name": each.name, "status": each.status, "summary": each.summary, "next": each.next or None, **each.facts}
            for each in report.findings
        ],
        "variables": [
            {"name": row.name, "value": value, "default": row.default, "meaning": row.meaning}
            for row, value in report.variables
        ],
    }


def _print(report: Report) -> None:
    for finding in report.findings:
        say(f"{finding.status:<8} {finding.name}: {finding.summary}", style=_STYLES[finding.status])
        if finding.next:
            say(f"         -> {finding.next}")
    say("")
    for row, value in report.variables:
        say(f"{row.name}={value}" if value else f"{row.name} (default: {row.default})")
        say(f"    {row.meaning}")
    say("\n" + report.verdict, style="bold")


def examine() -> Report:
    """Examine everything. A failure is a finding and raises nothing."""
    torch, gpu, driver, cxx = _torch(), _gpu(), _driver(), _cxx()
    known = gpu.facts.get("target")
    target = known if isinstance(known, str) else None
    nvcc, packs, signatures = _nvcc(target, cxx), findings.packs(target), findings.signatures()
    store = _store(needed=not any(pack.ok for pack in packs))
    compiles = cxx.ok and store.ok and not signatures
    builds = nvcc.ok and compiles
    return Report(
        findings=(torch, gpu, driver, nvcc, cxx, _ninja(), store, *packs, *signatures, native_calls(), *_settings()),
        abilities={
            "run": torch.ok and gpu.ok and (builds or findings.serves(packs, target)),
            "build": builds,
            "emulate": torch.ok and (compiles or findings.serves(packs, CPU)),
            "compose": torch.ok,
        },
        variables=tuple((row, environment.given(row.name)) for row in environment.VARIABLES),
    )


def native_calls() -> Finding:
    """Report whether repeated calls go through the C++ call path. Builds and loads nothing."""
    name = "native calls"
    if not environment.native():
        return _missing(name, "switched off: every call is launched from Python", "unset SCANOPS_NATIVE")
    try:
        from scanops.runtime.native import building  # needs torch

        request, found = building.request(), building.found()
    except ScanopsError as problem:
        return _missing(name, str(problem.value), problem.hint)
    except (ImportError, OSError):
        return _missing(name, "torch is needed to look", _GET_TORCH)
    facts = {"library": request.name, "identity": request.identity}
    if found is None:
        summary = f"no {request.name} in store or packs: calls are launched from Python, some microseconds slower"
        following = "python -m scanops.runtime.native builds it in half a minute; programs that repeat calls do so, too"
        return _missing(name, summary, following, **facts)
    return _ok(name, str(found.directory), **facts, path=str(found.directory))


def _ok(name: str, summary: str, **facts: object) -> Finding:
    return Finding(name=name, status="ok", summary=summary, facts=facts)


def _missing(name: str, summary: str, following: str, **facts: object) -> Finding:
    return Finding(name=name, status="missing", summary=summary, next=following, facts=facts)


def _broken(name: str, summary: str, following: str, **facts: object) -> Finding:
    return Finding(name=name, status="broken", summary=summary, next=following, facts=facts)


def _torch() -> Finding:
    try:
        import torch
    except ModuleNotFoundError:
        return _missing("torch", "not installed", _GET_TORCH)
    except (ImportError, OSError) as problem:
        return _broken("torch", f"does not import: {problem}", _GET_TORCH)
    cuda = torch.version.cuda
    made_for = f"built for CUDA {cuda}" if cuda else "built without CUDA (CPU only)"
    return _ok("torch", f"{torch.__version__}, {made_for}", version=str(torch.__version__), cuda=cuda)


def _gpu() -> Finding:
    try:
        import torch
    except (ImportError, OSError):
        return _missing("GPU", "torch is needed to look", _GET_TORCH)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        visible = torch.cuda.is_available()
    if not visible:
        no_cuda = torch.version.cuda is None and _driver().ok
        following = f"this torch is built for CPUs only: {_GET_TORCH}" if no_cuda else _GET_DRIVER
        return _missing("GPU", " ".join(str(each.message) for each in said) or "none visible to torch", following)
    try:
        name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    except RuntimeError as problem:
        summary = f"does not answer: {str(problem).splitlines()[0]}"
        return _broken("GPU", summary, "check nvidia-smi and CUDA_VISIBLE_DEVICES")
    facts: dict[str, object] = {"device": name, "capability": list(capability), "count": torch.cuda.device_count()}
    summary = f"{name}, compute capability {capability[0]}.{capability[1]}, {facts['count']} visible"
    try:
        target = target_of_capability(capability)
    except UnsupportedRequest as problem:
        return _broken("GPU", f"{summary}: not supported", problem.hint, **facts)
    return _ok("GPU", f"{summary}; target {target}", **facts, target=target)


def _driver() -> Finding:
    """Examine the driver without torch and without nvidia-smi, which containers often lack."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return _missing("driver", "no libcuda.so.1", _GET_DRIVER)
    number = ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(number))
    if code != 0:
        following = "install NVIDIA's driver again: its library and its kernel module may differ"
        return _broken("driver", f"cuDriverGetVersion: error {code}", following)
    newest = f"{number.value // 1000}.{number.value % 1000 // 10}"
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", _DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    version = found[0] if found else None
    return _ok("driver", f"{version or 'version unknown'}, up to CUDA {newest}", version=version, cuda=newest)


def _nvcc(target: str | None, cxx: Finding) -> Finding:
    try:
        found = toolchain.find_nvcc()
    except BuildFailure as problem:
        absent = problem.asked == "find nvcc" and environment.nvcc() is None
        # nvcc does not run without a host compiler: then that one is missing.
        verdict = _missing if absent or not cxx.ok else _broken
        return verdict("nvcc", _line(problem), problem.hint)
    facts = {name: str(getattr(found, name)) for name in ("root", "version", "found_by")}
    facts_too: dict[str, object] = {"path": str(found.nvcc), **facts, "targets": list(found.targets)}
    summary = f"{found.version}, {found.nvcc} (by {found.found_by}), toolkit {found.root}"
    if found.runtime is None or found.include is None:
        lacking = "libcudart" if found.runtime is None else "cuda_runtime.h"
        following = 'pip install "cuda-toolkit[nvcc,cudart,cccl]"'
        return _missing("nvcc", f"{summary}: no {lacking}", following, **facts_too)
    if target is not None and target not in found.targets:
        following = f"install a CUDA toolkit that knows {target} and set SCANOPS_NVCC to its nvcc"
        return _broken("nvcc", f"{summary}: does not know {target}", following, **facts_too)
    return _ok("nvcc", f"{summary}; {found.targets[0]} to {found.targets[-1]}", **facts_too)


def _cxx() -> Finding:
    try:
        found = toolchain.find_cxx()
    except BuildFailure as problem:
        absent = problem.asked.startswith("find") and environment.given("SCANOPS_CXX") is None
        return (_missing if absent else _broken)("g++", _line(problem), problem.hint)
    facts = {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    return _ok("g++", f"{found.version}, {found.path}", **facts)


def _ninja() -> Finding:
    try:
        found = toolchain.find_ninja()
    except BuildFailure as problem:
        if problem.asked != "find ninja":
            return _broken("ninja", _line(problem), problem.hint)
        return _missing("ninja", "not found; kernels are built without load_inline", problem.hint)
    facts = {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    return _ok("ninja", f"{found.version}, {found.path} (by {found.found_by})", **facts)


def _store(*, needed: bool) -> Finding:
    """Examine the store. One that cannot be written is broken; with packs (not ``needed``) it is only missing."""
    root = environment.store_root()
    facts: dict[str, object] = {"path": str(root), "writable": False, "entries": 0, "bytes": 0}
    try:
        exists = check_root(root)
        if exists:
            entries = [path for path in root.iterdir() if _ENTRY.fullmatch(path.name) and path.is_dir()]
            size = sum(file.stat().st_size for entry in entries for file in entry.iterdir())
            facts |= {"entries": len(entries), "bytes": size}
        place = next(folder for folder in (root, *root.parents) if folder.exists())
        with tempfile.TemporaryDirectory(dir=place, prefix=".scanops-doctor-"):
            facts["writable"] = True
    except BadStoreEntry as problem:
        return _broken("store", f"{root}: {problem.value}", problem.hint, **facts)
    except OSError as problem:
        summary = f"{root}: cannot be written ({problem.strerror})" + ("" if needed else "; kernels come from packs")
        return (_broken if needed else _missing)("store", summary, "set SCANOPS_STORE to a folder of your own", **facts)
    held = f"{facts['entries']} kernels, {facts['bytes']} bytes" if exists else "does not exist yet"
    return _ok("store", f"{root}, writable, {held}", **facts)


def _settings() -> tuple[Finding, ...]:
    """Return a finding for each variable whose value is invalid, and for a file of measured plans that is."""
    found = []
    for row in environment.VARIABLES:
        try:
            row.read()
            if row.name == "SCANOPS_TUNING":  # a bad file fails each lookup of a kernel
                for path in environment.tuning_files():
                    read_plans(path)
        except BadTuning as problem:
            found.append(_broken(row.name, _line(problem), problem.hint))
        except UnsupportedRequest as problem:
            found.append(_broken(row.name, f"not {problem.allowed}: {problem.value}", problem.hint))
        except ScanopsError:  # findings.signatures reports that of SCANOPS_REQUIRE_SIGNED
            continue
    return tuple(found)


def _line(problem: ScanopsError) -> str:
    return f"cannot {problem.asked}: " + " ".join(str(problem.value).split())
