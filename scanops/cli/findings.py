"""What ``scanops doctor`` reports about a machine: findings, and those about compilers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from scanops import environment
from scanops.builders import nvrtc as rtc
from scanops.builders.build import unavailable
from scanops.builders.toolchain import Program, find_nvcc
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import BuildFailure, MissingCompiler, ScanopsError, UnsupportedRequest
from scanops.runtime.policies import POLICIES

__all__ = ["GET_TORCH", "Finding", "Flaw", "builders", "finding", "nvcc", "nvrtc", "program"]

_CHOICES = {"nvcc": "SCANOPS_NVCC", "g++": "SCANOPS_CXX", "NVRTC": "SCANOPS_NVRTC"}  # named: broken, not missing
GET_TORCH = "pip install torch (pytorch.org/get-started has the line for each CUDA version)"


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


class Flaw(Exception):
    """What a check found: its status, missing or broken, a summary, and what to type."""


def finding(name: str, check: Callable[[dict[str, Any]], str]) -> Finding:
    """Return the finding of one check, which fills the facts and returns a summary, or raises what is wrong."""
    facts: dict[str, Any] = {}
    try:
        return Finding(name, "ok", _one_line(check(facts)), facts=facts)
    except Flaw as flaw:
        status, summary, following = flaw.args
        return Finding(name, status, _one_line(summary), following, facts)
    except (ImportError, OSError):
        return Finding(name, "missing", "torch is needed to look", GET_TORCH, facts)
    except ScanopsError as problem:
        absent = isinstance(problem, MissingCompiler) and not environment.given(_CHOICES.get(name, ""))
        words = f"cannot {problem.asked.removeprefix('cannot ')}: {problem.value}"
        return Finding(name, "missing" if absent else "broken", _one_line(words), problem.hint, facts)


def _one_line(text: str) -> str:
    """Return text that may be the words of a compiler as one line."""
    return " ".join(text.split())


# ---- compilers


def nvcc(target: str | None, cxx: bool, facts: dict[str, Any]) -> str:
    """Check for an nvcc that knows the target, and for the parts of its toolkit."""
    try:
        found = find_nvcc()
    except BuildFailure as problem:
        if cxx:
            raise
        raise Flaw("missing", str(problem.value), problem.hint) from problem  # nvcc needs a host compiler to answer
    facts |= {name: str(getattr(found, name)) for name in ("root", "version", "found_by")}
    facts |= {"path": str(found.nvcc), "targets": list(found.targets)}
    summary = f"{found.version}, {found.nvcc} (by {found.found_by}), toolkit {found.root}"
    for name, part in (("libcudart", found.runtime), ("cuda_runtime.h", found.include)):
        if part is None:
            raise Flaw("missing", f"{summary}: no {name}", 'pip install "cuda-toolkit[nvcc,cudart,cccl]"')
    if target is not None and target not in found.targets:
        following = f"install a CUDA toolkit that knows {target} and set SCANOPS_NVCC to its nvcc"
        raise Flaw("broken", f"{summary}: does not know {target}", following)
    return f"{summary}; {found.targets[0]} to {found.targets[-1]}"


def program(find: Callable[[], Program], facts: dict[str, Any]) -> str:
    """Check for a program that ``find`` returns."""
    found = find()
    facts |= {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    return f"{found.version}, {found.path} (by {found.found_by})"


def nvrtc(target: str | None, facts: dict[str, Any]) -> str:
    """Check for an NVRTC that knows the target."""
    try:
        found = rtc.require(target)
    except UnsupportedRequest as problem:
        raise Flaw("missing", f"none knows {target}: {problem.allowed}", problem.hint) from problem
    facts |= {"path": str(found.path), "version": found.version, "found_by": found.found_by}
    facts["targets"] = list(found.targets)
    return f"{found.version}, {found.path} (by {found.found_by}); {found.targets[0]} to {found.targets[-1]}"


def builders(target: str | None, facts: dict[str, Any]) -> str:
    """Check who can build for the GPU here, or for the default target, in the order in which a call asks."""
    names, target = POLICIES["build"].asked(), target or DEFAULT_TARGET
    problems = {name: unavailable(name, target) for name in names}
    facts |= {name: str(problem.value) if problem else None for name, problem in problems.items()}
    works = [name for name in names if not problems[name]]
    reasons = "".join(f"; not {name}: {problem.value}" for name, problem in problems.items() if problem)
    if not works:
        hints = dict.fromkeys(problem.hint for problem in problems.values() if problem)
        raise Flaw("missing", f"none for {target}{reasons}", "; or ".join(hints))
    return f"{', '.join(works)} for {target}{reasons}"
