"""``scanops doctor``: what this machine has, what it lacks, and what to type. Builds, creates and changes nothing."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import click

from scanops import environment
from scanops._version import note_untested
from scanops.build_request import CPU
from scanops.builders import unavailable
from scanops.builders.nvrtc import Nvrtc, require
from scanops.builders.toolchain import CudaToolkit, Program, find_cxx, find_ninja, find_nvcc
from scanops.cli.output import Answer, Command, working
from scanops.codegen.targets import DEFAULT_TARGET, target_of_capability
from scanops.errors import MissingCompiler, ScanopsError, did_you_mean
from scanops.files import size_of
from scanops.forks import import_late
from scanops.runtime.policies import POLICIES
from scanops.store.layers import Place, entries_of, keys, places, verify_signature
from scanops.store.packs import PACK, SIGNATURE, read, troubles
from scanops.store.root import check_root
from scanops.tuning import read as read_plans

__all__ = ["Diagnosis", "command", "examine", "finding", "native_calls", "settings"]

ABILITIES = {  # the fastest way to run a scan first
    "run": "run kernels on its GPU",
    "build": "build kernels for GPUs",
    "emulate": "emulate kernels on the CPU",
    "compose": "run scans as torch's own operations",
}
# How each is found, and the variable that names it: where it does, a missing one is broken.
_TOOLS: dict[str, tuple[Callable[[], Nvrtc | CudaToolkit | Program], str]] = {
    "NVRTC": (require, "SCANOPS_NVRTC"),
    "nvcc": (find_nvcc, "SCANOPS_NVCC"),
    "g++": (find_cxx, "SCANOPS_CXX"),
    "ninja": (find_ninja, ""),
}
_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}
_GET_TORCH = "pip install torch (pytorch.org/get-started has the line for each CUDA version)"
_GET_DRIVER = (
    "no action is needed on a machine without an NVIDIA GPU; with one, install NVIDIA's driver and check "
    "CUDA_VISIBLE_DEVICES"
)


class Diagnosis(NamedTuple):
    """What ``scanops doctor`` found about one thing."""

    name: str
    status: Literal["ok", "missing", "broken"]  # broken: present or requested, and it does not work
    summary: str  # one line
    next: str  # what to type; empty when it is ok
    facts: dict[str, Any]  # the same for --json

    @property
    def ok(self) -> bool:
        """Whether the thing is present and works."""
        return self.status == "ok"


class Flaw(Exception):
    """What a check found: its status, missing or broken, a summary, and what to type."""


def finding(name: str, check: Callable[[dict[str, Any]], str]) -> Diagnosis:
    """Return the finding of one check, which fills the facts and returns a summary, or raises what is wrong."""
    facts: dict[str, Any] = {}
    status: Literal["ok", "missing", "broken"] = "ok"
    following = ""
    try:
        summary = check(facts)
    except Flaw as flaw:
        status, summary, following = flaw.args
    except (ImportError, OSError):
        status, summary, following = "missing", "torch is needed to look", _GET_TORCH
    except ScanopsError as problem:
        named = environment.read_variable(_TOOLS[name][1]) if name in _TOOLS else None
        absent = isinstance(problem, MissingCompiler) and not named
        status, following = "missing" if absent else "broken", problem.hint
        summary = f"cannot {problem.asked.removeprefix('cannot ')}: {problem.value}"
    return Diagnosis(name, status, " ".join(summary.split()), following, facts)  # the words of a compiler in one line


@click.command("doctor", cls=Command, example="scanops doctor\nscanops doctor --json > machine.json")
def command() -> Answer:
    """Check this machine's GPU, compilers, packs and settings.

    Says what to type for anything that is missing or broken, and lists the environment variables. Exits with 0 when
    scans can run here in some way and nothing is broken; something that is merely missing is no failure.
    """
    working("examining this machine")
    findings, able = examine()
    lines: list[str | tuple[str, str]] = []
    for each in findings:
        lines.append((f"{each.status:<8} {each.name}: {each.summary}", _STYLES[each.status]))
        lines += [f"         -> {each.next}"] if each.next else []
    variables = [
        (row.name, environment.read_variable(row.name), row.default, row.meaning) for row in environment.VARIABLES
    ]
    lines.append("")
    for name, value, default, meaning in variables:
        lines += [f"{name}={value}" if value else f"{name} (default: {default})", f"    {meaning}"]
    broken = [each.name for each in findings if each.status == "broken"]
    can, cannot = (", ".join(ABILITIES[name] for name in able if able[name] is wanted) for wanted in (True, False))
    verdict = f"This machine can {can or 'run nothing yet'}"
    verdict += (f"; it cannot {cannot}" if cannot else "") + (f"; broken: {', '.join(broken)}" if broken else "") + "."
    facts = {
        "verdict": verdict,
        "can": able,
        "checks": [{**dict(zip(Diagnosis._fields, each[:-1], strict=False)), **each.facts} for each in findings],
        "variables": [dict(zip(("name", "value", "default", "meaning"), each, strict=True)) for each in variables],
    }
    sound = not broken and (able["run"] or able["emulate"] or able["compose"])
    return Answer(facts, [*lines, ("\n" + verdict, "bold")], code=0 if sound else 1)


def examine() -> tuple[list[Diagnosis], dict[str, bool]]:
    """Return all findings, and what this machine can do, by the names of ABILITIES. A failure is a finding."""
    torch, gpu, driver = finding("torch", _torch), finding("GPU", _gpu), finding("driver", _driver)
    target: str | None = gpu.facts.get("target")
    packs = [finding("pack", partial(_pack, place, target)) for place in places() if place.kind == "pack"]
    tools = [finding(name, partial(_tool, find)) for name, (find, _) in _TOOLS.items()]
    builders, cxx = finding("builders", partial(_builders, target)), tools[2]
    store = finding("store", partial(_store, any(pack.ok for pack in packs)))
    chosen = settings()
    served = {name for pack in packs if pack.ok for name in pack.facts["targets"]}
    keeps = store.ok and not any(each.name == "SCANOPS_REQUIRE_SIGNED" for each in chosen)
    builds = builders.ok and keeps
    able = {
        "run": torch.ok and gpu.ok and (builds or target in served),
        "build": builds,
        "emulate": torch.ok and ((cxx.ok and keeps) or CPU in served),
        "compose": torch.ok,
    }
    return [
        torch,
        gpu,
        driver,
        *tools,
        builders,
        store,
        *packs,
        finding("native calls", native_calls),
        finding("mamba_ssm", _mamba),
        *chosen,
    ], able


# ---- torch and the GPU


def _torch(facts: dict[str, Any]) -> str:
    try:
        torch = import_late("torch")
    except (ImportError, OSError) as problem:
        status = "missing" if isinstance(problem, ModuleNotFoundError) else "broken"
        raise Flaw(status, f"does not import: {problem}", _GET_TORCH) from problem
    version, python = str(torch.__version__), platform.python_version()
    facts |= {"version": version, "cuda": torch.version.cuda, "python": python}
    built = f"for CUDA {facts['cuda']}" if facts["cuda"] else "without CUDA (CPU only)"
    return (
        f"{version}, built {built}, Python {python}{note_untested('torch', version)}{note_untested('Python', python)}"
    )


def _gpu(facts: dict[str, Any]) -> str:
    torch = import_late("torch")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        visible = torch.cuda.is_available()
    if not visible:
        no_cuda = torch.version.cuda is None and finding("driver", _driver).ok
        following = f"this torch is built for CPUs only: {_GET_TORCH}" if no_cuda else _GET_DRIVER
        raise Flaw("missing", " ".join(str(each.message) for each in said) or "none visible to torch", following)
    try:
        name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    except RuntimeError as problem:
        summary = f"does not answer: {str(problem).splitlines()[0]}"
        raise Flaw("broken", summary, "check nvidia-smi and CUDA_VISIBLE_DEVICES") from problem
    facts |= {"device": name, "capability": list(capability), "count": torch.cuda.device_count()}
    facts["target"] = target = target_of_capability(capability)
    return f"{name}, compute capability {'.'.join(map(str, capability))}, {facts['count']} visible; target {target}"


def _driver(facts: dict[str, Any]) -> str:
    """Examine the driver without torch and without nvidia-smi, which containers often lack."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Flaw("missing", "no libcuda.so.1", _GET_DRIVER) from None
    number = ctypes.c_int(0)
    if code := library.cuDriverGetVersion(ctypes.byref(number)):
        following = "install NVIDIA's driver again: its library and its kernel module may differ"
        raise Flaw("broken", f"cuDriverGetVersion: error {code}", following)
    facts["cuda"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    return f"up to CUDA {facts['cuda']}"


def native_calls(facts: dict[str, Any]) -> str:
    """Check whether repeated calls go through the C++ call path. Builds and loads nothing."""
    if not environment.native():
        following = "unset SCANOPS_NATIVE; for a free-threaded Python, which has none, set PYTHON_GIL=1"
        raise Flaw("missing", "switched off: every call is launched from Python", following)
    building = import_late("scanops.runtime.native.building")  # needs torch
    try:
        request, entry = building.request(), building.find_library()
    except ScanopsError as problem:
        raise Flaw("missing", str(problem.value), problem.hint) from problem
    facts |= {"library": request.name, "identity": request.identity}
    if entry is None:
        # benchmarks/results/calls_h200.json: the least and the most of 12 operators
        summary = f"no {request.name} in package, store or packs: calls are launched from Python, 16 to 35 us slower"
        following = (
            "run python -m scanops.runtime.native.building (about 30 s), "
            "or let the first scan on a GPU build it in the background"
        )
        raise Flaw("missing", summary, following)
    facts["path"] = str(entry.directory)
    return str(entry.directory)


def _mamba(facts: dict[str, Any]) -> str:
    """Check where models find the functions of mamba_ssm. Imports nothing."""
    compat = sys.modules.get("scanops.compat")
    if compat is not None and compat.is_provided("mamba_ssm"):
        facts["provided"] = True
        return "not installed; scanops provides its functions in this process"
    facts["provided"] = False
    if "mamba_ssm" in sys.modules or importlib.util.find_spec("mamba_ssm") is not None:
        return "installed: models use its own functions"
    return 'not installed; scanops.compat.provide("mamba_ssm") lets transformers import its functions from scanops'


# ---- compilers


def _tool(find: Callable[[], Nvrtc | CudaToolkit | Program], facts: dict[str, Any]) -> str:
    """Check for what ``find`` returns. Whether it knows the GPU's target, ``builders`` says."""
    found = find()
    facts |= {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    summary = f"{found.version}, {found.path} (by {found.found_by})"
    if not isinstance(found, Program):
        facts["targets"] = list(found.targets)
        summary += f"; {found.targets[0]} to {found.targets[-1]}"
    return summary


def _builders(target: str | None, facts: dict[str, Any]) -> str:
    """Check who can build for the GPU here, or for the default target, in the order in which a call asks."""
    names, target = POLICIES["build"].list_builders(), target or DEFAULT_TARGET
    problems = {name: unavailable(name, target) for name in names}
    facts |= {name: str(problem.value) if problem else None for name, problem in problems.items()}
    works = [name for name in names if not problems[name]]
    reasons = "".join(f"; not {name}: {problem.value}" for name, problem in problems.items() if problem)
    if not works:
        hints = dict.fromkeys(problem.hint for problem in problems.values() if problem)
        raise Flaw("missing", f"none for {target}{reasons}", "; or ".join(hints))
    return f"{', '.join(works)} for {target}{reasons}"


# ---- store, packs and settings


def _store(packed: bool, facts: dict[str, Any]) -> str:
    """Examine the store. One that cannot be written is broken; where there are packs it is only missing."""
    root = environment.store_root()
    facts |= {"path": str(root), "writable": False}
    try:
        exists = check_root(root)
        sizes = [size_of(entry.directory) for entry in entries_of(root)] if exists else []
        facts |= {"entries": len(sizes), "bytes": sum(sizes)}
        place = next(folder for folder in (root, *root.parents) if folder.exists())
        with tempfile.TemporaryDirectory(dir=place, prefix=".scanops-doctor-"):
            facts["writable"] = True
    except OSError as problem:
        summary = f"{root}: cannot be written ({problem.strerror})" + ("; kernels come from packs" if packed else "")
        following = "set SCANOPS_STORE to a folder of your own"
        raise Flaw("missing" if packed else "broken", summary, following) from problem
    return f"{root}, writable, " + (f"{len(sizes)} kernels, {sum(sizes)} bytes" if exists else "does not exist yet")


def _pack(place: Place, target: str | None, facts: dict[str, Any]) -> str:
    """Examine a pack: its pack.json, its signature and the modes of its files. Hashes nothing."""
    root = place.root
    facts["path"] = str(root)
    if place.problem:
        raise place.problem
    if not (root / PACK).exists():
        summary = f"{root}: no {PACK}; its kernels are used, and as a whole it can be neither verified nor signed"
        raise Flaw("missing", summary, f"scanops pack {root} -o FILE")
    contents = read(root)
    facts |= {name: contents[name] for name in ("schema", "scanops", "abi", "platform", "targets")}
    facts |= {"kernels": len(contents["entries"]), "signed": (root / SIGNATURE).exists(), "signer": None}
    signature = "signed; set SCANOPS_REQUIRE_SIGNED=PUB.pem to check by whom" if facts["signed"] else "not signed"
    if environment.require_signed() is not None:
        facts["signer"] = verify_signature(root).signer
        signature = f"signed by {str(facts['signer'])[:16]}"
    for trouble, following in troubles(root, contents):
        raise Flaw("broken", f"{root}: {trouble}", following)
    summary = f"{root}, {facts['kernels']} kernels for {', '.join(contents['targets'])}, {signature}"
    if target is not None and target not in contents["targets"]:
        following = f"scanops precompile SPECS.toml --targets {target} -o DIRECTORY, on a machine with nvcc or NVRTC"
        raise Flaw("missing", f"{summary}: none for {target}", following)
    return summary


def settings() -> list[Diagnosis]:
    """Return a finding for each variable whose value is invalid, and for SCANOPS_REQUIRE_SIGNED if it is set."""
    found = [each for row in environment.VARIABLES if (each := finding(row.name, partial(_setting, row))).summary]
    return [*found, *(finding(name, partial(_unknown, name)) for name in environment.unknown())]


def _unknown(name: str, facts: dict[str, Any]) -> str:
    names = [row.name for row in environment.VARIABLES]
    raise Flaw("broken", "no variable of scanops", f"{did_you_mean(name, names, 0.8)}unset {name}")


def _setting(row: environment.Variable, facts: dict[str, Any]) -> str:
    """Read a variable, and the files that it names where a bad one fails each lookup of a kernel."""
    row.read()
    if row.name == "SCANOPS_TUNING":
        for path in environment.tuning_files():
            if environment.read_variable(row.name) and not path.exists():
                raise Flaw("broken", f"no such file: {path}", "scanops tune writes one; or unset SCANOPS_TUNING")
            read_plans(path)
    if row.name != "SCANOPS_REQUIRE_SIGNED" or environment.require_signed() is None:
        return ""
    facts["keys"] = list(keys())
    signers = ", ".join(key[:16] for key in facts["keys"])
    return f"only packs signed by {signers}; the store is not used and nothing is built"
