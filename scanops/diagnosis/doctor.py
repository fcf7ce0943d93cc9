"""What this machine has for scanops, what it lacks and what to type. Looks only: nothing is built or created."""

from __future__ import annotations

import ctypes
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scanops import environment
from scanops.artifact import CPU
from scanops.builders import toolchain
from scanops.codegen.targets import target_of_capability
from scanops.diagnosis import packs as health
from scanops.diagnosis.finding import Finding
from scanops.diagnosis.native import examined
from scanops.errors import BadStoreEntry, BadTuning, BuildFailure, ScanopsError, UnsupportedRequest
from scanops.store.root import check_root
from scanops.tuning.files import read as read_plans

__all__ = ["ABILITIES", "Finding", "Report", "examine"]

# The best way to run a scan first.
ABILITIES = {
    "run": "run kernels on its GPU",
    "build": "build kernels for GPUs",
    "emulate": "emulate kernels on the CPU",
    "compose": "run scans as torch's own operations",
}

_ENTRY = re.compile(r".+-[0-9a-f]{16}")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_READERS: dict[str, Callable[[], object]] = {
    "SCANOPS_LOCK_SECONDS": environment.lock_seconds,
    "SCANOPS_MAX_STORE": environment.max_store,
    "SCANOPS_POLICY": environment.policy,
    "SCANOPS_TUNING": lambda: _plans(),
}
_GET_TORCH = "pip install torch (pytorch.org/get-started has the line for each CUDA version)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything looked for, and what follows."""

    findings: tuple[Finding, ...]
    abilities: dict[str, bool]  # what this machine can do, by the names of ABILITIES
    variables: tuple[tuple[environment.Variable, str | None], ...]  # each with what it is set to

    @property
    def ok(self) -> bool:
        """Scans can run in some way, and nothing is broken."""
        runs = any(able for name, able in self.abilities.items() if name != "build")
        return runs and all(finding.status != "broken" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence."""
        can = [ABILITIES[name] for name, able in self.abilities.items() if able]
        cannot = [ABILITIES[name] for name, able in self.abilities.items() if not able]
        broken = [finding.name for finding in self.findings if finding.status == "broken"]
        return (
            f"This machine can {', '.join(can) or 'run nothing yet'}"
            + (f"; it cannot {', '.join(cannot)}" if cannot else "")
            + (f"; broken: {', '.join(broken)}" if broken else "")
            + "."
        )


def examine() -> Report:
    """Look at everything. Raises nothing: what goes wrong is a finding."""
    torch, gpu, cxx = _torch(), _gpu(), _cxx()
    known = gpu.facts.get("target")
    target = known if isinstance(known, str) else None
    nvcc, packs, signatures = _nvcc(target, cxx), health.packs(target), health.signatures()
    store = _store(needed=not any(pack.ok for pack in packs))
    compiles = cxx.ok and store.ok and not signatures
    builds = nvcc.ok and compiles
    return Report(
        findings=(torch, gpu, _driver(), nvcc, cxx, _ninja(), store, *packs, *signatures, examined(), *_settings()),
        abilities={
            "run": torch.ok and gpu.ok and (builds or health.serves(packs, target)),
            "build": builds,
            "emulate": torch.ok and (compiles or health.serves(packs, CPU)),
            "compose": torch.ok,
        },
        variables=tuple((row, environment.given(row.name)) for row in environment.VARIABLES),
    )


def _torch() -> Finding:
    try:
        import torch
    except ModuleNotFoundError:
        return Finding(name="torch", status="missing", summary="not installed", next=_GET_TORCH)
    except (ImportError, OSError) as problem:
        return Finding(name="torch", status="broken", summary=f"does not import: {problem}", next=_GET_TORCH)
    cuda = torch.version.cuda
    made_for = f"built for CUDA {cuda}" if cuda else "built without CUDA (CPU only)"
    facts: dict[str, object] = {"version": str(torch.__version__), "cuda": cuda}
    return Finding(name="torch", status="ok", summary=f"{torch.__version__}, {made_for}", facts=facts)


def _gpu() -> Finding:
    try:
        import torch
    except (ImportError, OSError):
        return Finding(name="GPU", status="missing", summary="torch is needed to look", next=_GET_TORCH)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        visible = torch.cuda.is_available()
    if not visible:
        return _no_gpu(torch.version.cuda, " ".join(str(warning.message) for warning in said))
    try:
        name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    except RuntimeError as problem:
        summary = f"does not answer: {str(problem).splitlines()[0]}"
        return Finding(name="GPU", status="broken", summary=summary, next="see nvidia-smi and CUDA_VISIBLE_DEVICES")
    facts: dict[str, object] = {"device": name, "capability": list(capability), "count": torch.cuda.device_count()}
    summary = f"{name}, compute capability {capability[0]}.{capability[1]}, {facts['count']} visible"
    try:
        facts["target"] = target_of_capability(capability)
    except UnsupportedRequest as problem:
        return Finding(name="GPU", status="broken", summary=f"{summary}: not known", next=problem.hint, facts=facts)
    return Finding(name="GPU", status="ok", summary=f"{summary}; target {facts['target']}", facts=facts)


def _no_gpu(cuda: str | None, said: str) -> Finding:
    if cuda is None and _driver().ok:
        following = "this torch is for CPUs only: " + _GET_TORCH
    else:
        following = "nothing, unless there is one: then install NVIDIA's driver and see CUDA_VISIBLE_DEVICES"
    return Finding(name="GPU", status="missing", summary=said or "none visible to torch", next=following)


def _driver() -> Finding:
    """Asked without torch and without nvidia-smi, which containers often lack."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding(
            name="driver",
            status="missing",
            summary="no libcuda.so.1",
            next="nothing, unless there is an NVIDIA GPU: then install NVIDIA's driver",
        )
    number = ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(number))
    if code != 0:
        following = "install NVIDIA's driver again: its library and its kernel module may differ"
        return Finding(name="driver", status="broken", summary=f"cuDriverGetVersion: error {code}", next=following)
    newest = f"{number.value // 1000}.{number.value % 1000 // 10}"
    try:
        version = re.search(r"\d+\.\d+(\.\d+)?", _DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        version = None
    facts: dict[str, object] = {"version": version[0] if version else None, "cuda": newest}
    return Finding(
        name="driver", status="ok", summary=f"{facts['version'] or 'version unknown'}, up to CUDA {newest}", facts=facts
    )


def _nvcc(target: str | None, cxx: Finding) -> Finding:
    try:
        found = toolchain.find_nvcc()
    except BuildFailure as problem:
        asked_for = environment.nvcc() is not None
        absent = problem.asked == "find nvcc" and not asked_for
        # nvcc answers nothing without a host compiler; that is not its fault.
        status: Literal["missing", "broken"] = "missing" if absent or not cxx.ok else "broken"
        return Finding(name="nvcc", status=status, summary=_line(problem), next=problem.hint)
    facts: dict[str, object] = {
        "path": str(found.nvcc),
        "root": str(found.root),
        "version": found.version,
        "found_by": found.found_by,
        "targets": list(found.targets),
    }
    summary = f"{found.version}, {found.nvcc} (by {found.found_by}), toolkit {found.root}"
    if found.runtime is None or found.include is None:
        lacking = "libcudart" if found.runtime is None else "cuda_runtime.h"
        following = 'pip install "cuda-toolkit[nvcc,cudart,cccl]"'
        return Finding(name="nvcc", status="missing", summary=f"{summary}: no {lacking}", next=following, facts=facts)
    if target is not None and target not in found.targets:
        following = f"install a CUDA toolkit that knows {target} and set SCANOPS_NVCC to its nvcc"
        summary = f"{summary}: does not know {target}"
        return Finding(name="nvcc", status="broken", summary=summary, next=following, facts=facts)
    return Finding(
        name="nvcc", status="ok", summary=f"{summary}; {found.targets[0]} to {found.targets[-1]}", facts=facts
    )


def _cxx() -> Finding:
    try:
        found = toolchain.find_cxx()
    except BuildFailure as problem:
        absent = problem.asked.startswith("find") and environment.given("SCANOPS_CXX") is None
        return Finding(name="g++", status="missing" if absent else "broken", summary=_line(problem), next=problem.hint)
    facts: dict[str, object] = {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    return Finding(name="g++", status="ok", summary=f"{found.version}, {found.path}", facts=facts)


def _ninja() -> Finding:
    try:
        found = toolchain.find_ninja()
    except BuildFailure as problem:
        broken = problem.asked != "find ninja"
        summary = _line(problem) if broken else "neither; kernels are built without load_inline"
        return Finding(name="ninja", status="broken" if broken else "missing", summary=summary, next=problem.hint)
    facts: dict[str, object] = {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    return Finding(
        name="ninja", status="ok", summary=f"{found.version}, {found.path} (by {found.found_by})", facts=facts
    )


def _store(*, needed: bool) -> Finding:
    """Without packs a store that cannot be written is broken; with packs it is merely one that takes nothing new."""
    root = environment.store_root()
    facts: dict[str, object] = {"path": str(root), "writable": False, "entries": 0, "bytes": 0}
    try:
        exists = check_root(root)
        facts["entries"], facts["bytes"] = _contents(root) if exists else (0, 0)
        place = next(folder for folder in (root, *root.parents) if folder.exists())
        with tempfile.TemporaryDirectory(dir=place, prefix=".scanops-doctor-"):
            facts["writable"] = True
    except BadStoreEntry as problem:
        return Finding(
            name="store", status="broken", summary=f"{root}: {problem.value}", next=problem.hint, facts=facts
        )
    except OSError as problem:
        following = "set SCANOPS_STORE to a folder of your own"
        summary = f"{root}: cannot be written ({problem.strerror})" + ("" if needed else "; kernels come from packs")
        status: Literal["missing", "broken"] = "broken" if needed else "missing"
        return Finding(name="store", status=status, summary=summary, next=following, facts=facts)
    held = f"{facts['entries']} kernels, {facts['bytes']} bytes" if exists else "not made yet"
    return Finding(name="store", status="ok", summary=f"{root}, writable, {held}", facts=facts)


def _contents(root: Path) -> tuple[int, int]:
    """(entries, bytes) of a store."""
    entries = [path for path in root.iterdir() if _ENTRY.fullmatch(path.name) and path.is_dir()]
    return len(entries), sum(file.stat().st_size for entry in entries for file in entry.iterdir())


def _settings() -> tuple[Finding, ...]:
    """A finding for each variable that is set to something it cannot mean."""
    found = []
    for name, read in _READERS.items():
        try:
            read()
        except (UnsupportedRequest, BadTuning) as problem:
            unread = isinstance(problem, BadTuning)  # a file, and not what the variable says
            summary = _line(problem) if unread else f"not {problem.allowed}: {problem.value}"
            found.append(Finding(name=name, status="broken", summary=summary, next=problem.hint))
    return tuple(found)


def _plans() -> None:
    """Read every file of measured plans: a bad one ends each look-up of a kernel."""
    for path in environment.tuning_files():
        read_plans(path)


def _line(problem: ScanopsError) -> str:
    return f"cannot {problem.asked}: " + " ".join(str(problem.value).split())
