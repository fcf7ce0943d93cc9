"""``scanops doctor``: what this machine has, what it lacks, and what to type. Builds, creates and changes nothing."""

from __future__ import annotations

import ctypes
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from scanops import environment
from scanops.artifact import ABI, CPU, platform
from scanops.builders import toolchain
from scanops.cli.output import Answer, Command, working
from scanops.codegen.targets import target_of_capability
from scanops.errors import BadStoreEntry, BadTuning, BuildFailure, ScanopsError, UnsupportedRequest
from scanops.files import size_of
from scanops.store.entry import unsafe
from scanops.store.layers import Place, entries_of, keys, places, vouched
from scanops.store.packs import PACK, SIGNATURE, read
from scanops.store.root import check_root
from scanops.tuning import read as read_plans

__all__ = ["Finding", "command", "examine", "native_calls", "signatures"]

ABILITIES = {  # the fastest way to run a scan first
    "run": "run kernels on its GPU",
    "build": "build kernels for GPUs",
    "emulate": "emulate kernels on the CPU",
    "compose": "run scans as torch's own operations",
}
_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_GET_TORCH = "pip install torch (pytorch.org/get-started has the line for each CUDA version)"
_GET_DRIVER = "nothing, unless there is an NVIDIA GPU: then install NVIDIA's driver and check CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Finding:
    """What ``scanops doctor`` found about one thing."""

    name: str
    status: Literal["ok", "missing", "broken"]  # broken: present or requested, and it does not work
    summary: str  # one line
    next: str = ""  # what to type; empty when it is ok
    facts: dict[str, Any] = field(default_factory=dict)  # the same for --json

    @property
    def ok(self) -> bool:
        """Whether the thing is present and works."""
        return self.status == "ok"


@click.command("doctor", cls=Command, example="scanops doctor\nscanops doctor --json > machine.json")
def command() -> Answer:
    """Show what this machine has and lacks for scanops.

    Says what to type for anything that is missing or broken, and lists the environment variables. Exits with 0 when
    scans can run here in some way and nothing is broken; something that is merely missing is no failure.
    """
    with working("examining this machine"):
        findings, able = examine()
    lines: list[str | tuple[str, str]] = []
    for each in findings:
        lines.append((f"{each.status:<8} {each.name}: {each.summary}", _STYLES[each.status]))
        lines += [f"         -> {each.next}"] if each.next else []
    variables = [(row, environment.given(row.name)) for row in environment.VARIABLES]
    lines.append("")
    for row, value in variables:
        lines.append(f"{row.name}={value}" if value else f"{row.name} (default: {row.default})")
        lines.append(f"    {row.meaning}")
    broken = [each.name for each in findings if each.status == "broken"]
    can, cannot = ([text for name, text in ABILITIES.items() if able[name] is wanted] for wanted in (True, False))
    parts = [f"This machine can {', '.join(can) or 'run nothing yet'}"]
    parts += [f"it cannot {', '.join(cannot)}"] if cannot else []
    parts += [f"broken: {', '.join(broken)}"] if broken else []
    verdict = "; ".join(parts) + "."
    facts = {
        "verdict": verdict,
        "can": able,
        "checks": [
            {"name": each.name, "status": each.status, "summary": each.summary, "next": each.next or None, **each.facts}
            for each in findings
        ],
        "variables": [
            {"name": row.name, "value": value, "default": row.default, "meaning": row.meaning}
            for row, value in variables
        ],
    }
    runs = able["run"] or able["emulate"] or able["compose"]
    return Answer(facts, [*lines, ("\n" + verdict, "bold")], code=0 if runs and not broken else 1)


def examine() -> tuple[list[Finding], dict[str, bool]]:
    """Return all findings, and what this machine can do, by the names of ABILITIES. A failure is a finding."""
    torch, gpu, driver, cxx = _torch(), _gpu(), _driver(), _cxx()
    target: str | None = gpu.facts.get("target")
    packs = [_pack(place, target) for place in places() if place.kind == "pack"]
    signed = signatures()
    nvcc, store = _nvcc(target, cxx), _store(needed=not any(pack.ok for pack in packs))
    served = {name for pack in packs if pack.ok for name in pack.facts["targets"]}
    compiles = cxx.ok and store.ok and not signed
    builds = nvcc.ok and compiles
    able = {
        "run": torch.ok and gpu.ok and (builds or target in served),
        "build": builds,
        "emulate": torch.ok and (compiles or CPU in served),
        "compose": torch.ok,
    }
    found = [torch, gpu, driver, nvcc, cxx, _ninja(), store, *packs, *signed, native_calls(), *_settings()]
    return found, able


def native_calls() -> Finding:
    """Report whether repeated calls go through the C++ call path. Builds and loads nothing."""
    name = "native calls"
    if not environment.native():
        return Finding(name, "missing", "switched off: every call is launched from Python", "unset SCANOPS_NATIVE")
    try:
        from scanops.runtime.native import building  # needs torch

        request, found = building.request(), building.found()
    except ScanopsError as problem:
        return Finding(name, "missing", str(problem.value), problem.hint)
    except (ImportError, OSError):
        return Finding(name, "missing", "torch is needed to look", _GET_TORCH)
    facts = {"library": request.name, "identity": request.identity}
    if found is not None:
        return Finding(name, "ok", str(found.directory), facts={**facts, "path": str(found.directory)})
    summary = f"no {request.name} in store or packs: calls are launched from Python, some microseconds slower"
    following = "python -m scanops.runtime.native builds it in half a minute; programs that repeat calls do so, too"
    return Finding(name, "missing", summary, following, facts)


def signatures() -> list[Finding]:
    """Return a finding for SCANOPS_REQUIRE_SIGNED, if it is set."""
    name = "SCANOPS_REQUIRE_SIGNED"
    try:
        if environment.require_signed() is None:
            return []
        known = list(keys())
    except ScanopsError as problem:
        return [Finding(name, "broken", f"{problem.asked}: {problem.value}", problem.hint)]
    summary = f"only packs signed by {', '.join(key[:16] for key in known)}; the store is not used and nothing is built"
    return [Finding(name, "ok", summary, facts={"keys": known})]


# ---- torch and the GPU


def _torch() -> Finding:
    try:
        import torch
    except ModuleNotFoundError:
        return Finding("torch", "missing", "not installed", _GET_TORCH)
    except (ImportError, OSError) as problem:
        return Finding("torch", "broken", f"does not import: {problem}", _GET_TORCH)
    cuda = torch.version.cuda
    made_for = f"built for CUDA {cuda}" if cuda else "built without CUDA (CPU only)"
    facts = {"version": str(torch.__version__), "cuda": cuda}
    return Finding("torch", "ok", f"{torch.__version__}, {made_for}", facts=facts)


def _gpu() -> Finding:
    try:
        import torch
    except (ImportError, OSError):
        return Finding("GPU", "missing", "torch is needed to look", _GET_TORCH)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        visible = torch.cuda.is_available()
    if not visible:
        no_cuda = torch.version.cuda is None and _driver().ok
        following = f"this torch is built for CPUs only: {_GET_TORCH}" if no_cuda else _GET_DRIVER
        summary = " ".join(str(each.message) for each in said) or "none visible to torch"
        return Finding("GPU", "missing", summary, following)
    try:
        name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    except RuntimeError as problem:
        summary = f"does not answer: {str(problem).splitlines()[0]}"
        return Finding("GPU", "broken", summary, "check nvidia-smi and CUDA_VISIBLE_DEVICES")
    facts = {"device": name, "capability": list(capability), "count": torch.cuda.device_count()}
    summary = f"{name}, compute capability {capability[0]}.{capability[1]}, {facts['count']} visible"
    try:
        target = target_of_capability(capability)
    except UnsupportedRequest as problem:
        return Finding("GPU", "broken", f"{summary}: not supported", problem.hint, facts)
    return Finding("GPU", "ok", f"{summary}; target {target}", facts={**facts, "target": target})


def _driver() -> Finding:
    """Examine the driver without torch and without nvidia-smi, which containers often lack."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding("driver", "missing", "no libcuda.so.1", _GET_DRIVER)
    number = ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(number))
    if code != 0:
        following = "install NVIDIA's driver again: its library and its kernel module may differ"
        return Finding("driver", "broken", f"cuDriverGetVersion: error {code}", following)
    newest = f"{number.value // 1000}.{number.value % 1000 // 10}"
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", _DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    version = found[0] if found else None
    facts = {"version": version, "cuda": newest}
    return Finding("driver", "ok", f"{version or 'version unknown'}, up to CUDA {newest}", facts=facts)


# ---- compilers


def _nvcc(target: str | None, cxx: Finding) -> Finding:
    # nvcc does not run without a host compiler: then that one is missing.
    found = _tool("nvcc", toolchain.find_nvcc, missing=not cxx.ok, variable="SCANOPS_NVCC")
    if isinstance(found, Finding):
        return found
    facts = {name: str(getattr(found, name)) for name in ("root", "version", "found_by")}
    all_facts = {"path": str(found.nvcc), **facts, "targets": list(found.targets)}
    summary = f"{found.version}, {found.nvcc} (by {found.found_by}), toolkit {found.root}"
    if found.runtime is None or found.include is None:
        lacking = "libcudart" if found.runtime is None else "cuda_runtime.h"
        following = 'pip install "cuda-toolkit[nvcc,cudart,cccl]"'
        return Finding("nvcc", "missing", f"{summary}: no {lacking}", following, all_facts)
    if target is not None and target not in found.targets:
        following = f"install a CUDA toolkit that knows {target} and set SCANOPS_NVCC to its nvcc"
        return Finding("nvcc", "broken", f"{summary}: does not know {target}", following, all_facts)
    return Finding("nvcc", "ok", f"{summary}; {found.targets[0]} to {found.targets[-1]}", facts=all_facts)


def _cxx() -> Finding:
    found = _tool("g++", toolchain.find_cxx, variable="SCANOPS_CXX")
    return found if isinstance(found, Finding) else _program("g++", found)


def _ninja() -> Finding:
    found = _tool("ninja", toolchain.find_ninja, otherwise="kernels are built without load_inline")
    return found if isinstance(found, Finding) else _program("ninja", found)


def _tool(name: str, find: Callable[[], Any], *, missing: bool = False, variable: str = "", otherwise: str = "") -> Any:
    """Return what ``find`` finds, or a finding: the tool is missing, or the one that ``variable`` names is broken."""
    try:
        return find()
    except BuildFailure as problem:
        absent = problem.asked.startswith("find ") and not (variable and environment.given(variable))
        summary = f"not found; {otherwise}" if absent and otherwise else _line(problem)
        return Finding(name, "missing" if absent or missing else "broken", summary, problem.hint)


def _program(name: str, found: toolchain.Program) -> Finding:
    facts = {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    return Finding(name, "ok", f"{found.version}, {found.path} (by {found.found_by})", facts=facts)


# ---- store, packs and settings


def _store(*, needed: bool) -> Finding:
    """Examine the store. One that cannot be written is broken; with packs (not ``needed``) it is only missing."""
    root = environment.store_root()
    facts: dict[str, Any] = {"path": str(root), "writable": False, "entries": 0, "bytes": 0}
    try:
        exists = check_root(root)
        if exists:
            sizes = [size_of(entry.directory) for entry in entries_of(root)]
            facts |= {"entries": len(sizes), "bytes": sum(sizes)}
        place = next(folder for folder in (root, *root.parents) if folder.exists())
        with tempfile.TemporaryDirectory(dir=place, prefix=".scanops-doctor-"):
            facts["writable"] = True
    except BadStoreEntry as problem:
        return Finding("store", "broken", f"{root}: {problem.value}", problem.hint, facts)
    except OSError as problem:
        summary = f"{root}: cannot be written ({problem.strerror})" + ("" if needed else "; kernels come from packs")
        status: Literal["broken", "missing"] = "broken" if needed else "missing"
        return Finding("store", status, summary, "set SCANOPS_STORE to a folder of your own", facts)
    held = f"{facts['entries']} kernels, {facts['bytes']} bytes" if exists else "does not exist yet"
    return Finding("store", "ok", f"{root}, writable, {held}", facts=facts)


def _pack(place: Place, target: str | None) -> Finding:
    """Examine a pack: its pack.json, its signature and the modes of its files. Hashes nothing."""
    root = place.root
    facts: dict[str, Any] = {"path": str(root)}
    try:
        if place.problem:
            raise place.problem
        if not place.exists:
            return Finding("pack", "broken", f"{root}: no such folder", "correct SCANOPS_PACKS, or unset it", facts)
        if not (root / PACK).exists():
            summary = f"{root}: no {PACK}; its kernels are used, and as a whole it can be neither verified nor signed"
            return Finding("pack", "missing", summary, f"scanops pack {root} -o FILE", facts)
        contents = read(root)
        facts |= {name: contents[name] for name in ("schema", "scanops", "abi", "platform", "targets")}
        facts |= {"kernels": len(contents["entries"]), "signed": (root / SIGNATURE).exists(), "signer": None}
        signature = "signed; SCANOPS_REQUIRE_SIGNED=PUB.pem checks by whom" if facts["signed"] else "not signed"
        if environment.require_signed() is not None:
            facts["signer"] = vouched(root).signer
            signature = f"signed by {str(facts['signer'])[:16]}"
    except ScanopsError as problem:
        return Finding("pack", "broken", f"{root}: {problem.value}", problem.hint, facts)
    for trouble, following in _troubles(root, contents):
        return Finding("pack", "broken", f"{root}: {trouble}", following, facts)
    summary = f"{root}, {facts['kernels']} kernels for {', '.join(contents['targets'])}, {signature}"
    if target is None or target in contents["targets"]:
        return Finding("pack", "ok", summary, facts=facts)
    following = f"scanops precompile SPECS.toml --targets {target} -o DIRECTORY, on a machine with nvcc"
    return Finding("pack", "missing", f"{summary}: none for {target}", following, facts)


def _troubles(root: Path, contents: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (why some or all kernels of the pack cannot be used, what to type)."""
    if contents["abi"] != ABI:
        yield f"ABI {contents['abi']}, this version of scanops needs {ABI}", "build and pack it with this version"
    if contents["platform"] != platform():
        yield f"built for {contents['platform']}, this is {platform()}", "build it on such a machine"
    names = [entry["directory"] for entry in contents["entries"]]
    problems = [f"{name}: {problem}" for name in names if (problem := unsafe(root / name))]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield problems[0] + more, f"scanops store verify {root}, then unpack it again"


def _settings() -> Iterator[Finding]:
    """Yield a finding for each variable whose value is invalid, and for a file of measured plans that is."""
    for row in environment.VARIABLES:
        try:
            row.read()
            if row.name == "SCANOPS_TUNING":  # a bad file fails each lookup of a kernel
                for path in environment.tuning_files():
                    read_plans(path)
        except BadTuning as problem:
            yield Finding(row.name, "broken", _line(problem), problem.hint)
        except UnsupportedRequest as problem:
            yield Finding(row.name, "broken", f"not {problem.allowed}: {problem.value}", problem.hint)
        except ScanopsError:  # signatures() reports that of SCANOPS_REQUIRE_SIGNED
            continue


def _line(problem: ScanopsError) -> str:
    return f"cannot {problem.asked}: " + " ".join(str(problem.value).split())
