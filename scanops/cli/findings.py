"""Findings of ``scanops doctor``, and those about packs and trusted keys. Reads pack.json and modes, hashes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from scanops import environment
from scanops.artifact import ABI, platform
from scanops.errors import ScanopsError
from scanops.store.entry import unsafe
from scanops.store.layers import keys, vouched
from scanops.store.packs import PACK, SIGNATURE, installed, read
from scanops.store.root import check_root

__all__ = ["Finding", "packs", "serves", "signatures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What ``scanops doctor`` found about one thing."""

    name: str
    status: Literal["ok", "missing", "broken"]  # broken: present or requested, and it does not work
    summary: str  # one line
    next: str = ""  # what to type; empty when it is ok
    facts: dict[str, object] = field(default_factory=dict)  # the same for --json

    @property
    def ok(self) -> bool:
        """Whether the thing is present and works."""
        return self.status == "ok"


def packs(target: str | None) -> tuple[Finding, ...]:
    """Return a finding for each pack, in lookup order; ``target`` is the GPU's, None without a GPU."""
    return tuple(_pack(root, target) for root in dict.fromkeys((*environment.pack_roots(), *installed())))


def serves(findings: tuple[Finding, ...], target: str | None) -> bool:
    """Whether one of the packs has usable kernels for ``target``."""
    return any(finding.ok and target in cast("list[str]", finding.facts["targets"]) for finding in findings)


def signatures() -> tuple[Finding, ...]:
    """Return a finding for SCANOPS_REQUIRE_SIGNED, if it is set."""
    name = "SCANOPS_REQUIRE_SIGNED"
    try:
        if environment.require_signed() is None:
            return ()
        known = list(keys())
    except ScanopsError as problem:
        return (Finding(name=name, status="broken", summary=f"{problem.asked}: {problem.value}", next=problem.hint),)
    summary = f"only packs signed by {', '.join(key[:16] for key in known)}; the store is not used and nothing is built"
    return (Finding(name=name, status="ok", summary=summary, facts={"keys": known}),)


def _pack(root: Path, target: str | None) -> Finding:
    facts: dict[str, object] = {"path": str(root)}

    def broken(summary: object, following: str) -> Finding:
        return Finding(name="pack", status="broken", summary=f"{root}: {summary}", next=following, facts=facts)

    try:
        if not check_root(root, system=True):
            return broken("no such folder", "correct SCANOPS_PACKS, or unset it")
        required = environment.require_signed() is not None
        if not (root / PACK).exists() and not required:
            summary = f"{root}: no {PACK}; its kernels are used, and as a whole it can be neither verified nor signed"
            following = f"scanops pack {root} -o FILE"
            return Finding(name="pack", status="missing", summary=summary, next=following, facts=facts)
        contents = read(root)
        facts |= {name: contents[name] for name in ("schema", "scanops", "abi", "platform", "targets")}
        facts |= {"kernels": len(contents["entries"]), "signed": (root / SIGNATURE).exists()}
        signature = _signature(root, facts, required)
    except ScanopsError as problem:
        return broken(problem.value, problem.hint)
    trouble = _trouble(root, contents)
    if trouble is not None:
        return broken(*trouble)
    summary = f"{root}, {facts['kernels']} kernels for {', '.join(contents['targets'])}, {signature}"
    if target is None or target in contents["targets"]:
        return Finding(name="pack", status="ok", summary=summary, facts=facts)
    following = f"scanops precompile SPECS.toml --targets {target} -o DIRECTORY, on a machine with nvcc"
    return Finding(name="pack", status="missing", summary=f"{summary}: none for {target}", next=following, facts=facts)


def _trouble(root: Path, contents: dict[str, Any]) -> tuple[str, str] | None:
    """Return (why some or all kernels of the pack cannot be used, what to type), None if all can."""
    if contents["abi"] != ABI:
        return f"ABI {contents['abi']}, this version of scanops needs {ABI}", "build and pack it with this version"
    if contents["platform"] != platform():
        return f"built for {contents['platform']}, this is {platform()}", "build it on such a machine"
    found = ((entry["directory"], unsafe(root / entry["directory"])) for entry in contents["entries"])
    problems = [f"{name}: {problem}" for name, problem in found if problem]
    if not problems:
        return None
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return problems[0] + more, f"scanops store verify {root}, then unpack it again"


def _signature(root: Path, facts: dict[str, object], required: bool) -> str:
    """Describe the signature. Raises BadSignature if one is required and no trusted key made it."""
    if not required:
        facts["signer"] = None
        return "signed; SCANOPS_REQUIRE_SIGNED=PUB.pem checks by whom" if facts["signed"] else "not signed"
    facts["signer"] = vouched(root).signer
    return f"signed by {str(facts['signer'])[:16]}"
