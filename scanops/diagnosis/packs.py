"""What ``scanops doctor`` says of packs and of the keys they must be signed with. Reads facts, digests nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scanops import environment
from scanops.artifact import ABI, platform
from scanops.diagnosis.finding import Finding
from scanops.errors import ScanopsError
from scanops.packs.installed import installed
from scanops.packs.manifest import PACK, SIGNATURE, read
from scanops.store.entry import unsafe
from scanops.store.root import check_root

__all__ = ["packs", "serves", "signatures"]


def packs(target: str | None) -> tuple[Finding, ...]:
    """A finding for each pack a look-up goes through, in its order; ``target`` is that of the GPU, if there is one."""
    return tuple(_pack(root, target) for root in dict.fromkeys((*environment.pack_roots(), *installed())))


def serves(findings: tuple[Finding, ...], target: str | None) -> bool:
    """Whether one of the packs has kernels for ``target`` that can be used."""
    return any(finding.ok and target in _targets(finding) for finding in findings)


def signatures() -> tuple[Finding, ...]:
    """A finding for SCANOPS_REQUIRE_SIGNED, if it is set."""
    if environment.require_signed() is None:
        return ()
    from scanops.packs import trust

    name = "SCANOPS_REQUIRE_SIGNED"
    try:
        known = list(trust.keys())
    except ScanopsError as problem:
        return (Finding(name=name, status="broken", summary=f"{problem.asked}: {problem.value}", next=problem.hint),)
    summary = f"only packs signed by {', '.join(key[:16] for key in known)}; the store is not used and nothing is built"
    return (Finding(name=name, status="ok", summary=summary, facts={"keys": known}),)


def _pack(root: Path, target: str | None) -> Finding:
    facts: dict[str, object] = {"path": str(root)}
    try:
        if not check_root(root, system=True):
            return _broken(root, "no such folder", "correct SCANOPS_PACKS, or unset it", facts)
        if not (root / PACK).exists() and environment.require_signed() is None:
            summary = f"{root}: no {PACK}; its kernels are used, and as a whole it can be neither verified nor signed"
            return Finding(name="pack", status="missing", summary=summary, next=_again(root), facts=facts)
        contents = read(root)
        facts |= {name: contents[name] for name in ("schema", "scanops", "abi", "platform", "targets")}
        facts["kernels"] = len(contents["entries"])
        signature = _signature(root, facts)
    except (KeyError, TypeError) as problem:
        return _broken(root, f"{PACK} lacks {problem}", _again(root), facts)
    except ScanopsError as problem:
        return _broken(root, str(problem.value), problem.hint, facts)
    trouble = _trouble(root, contents)
    if trouble is not None:
        return _broken(root, *trouble, facts)
    summary = f"{root}, {facts['kernels']} kernels for {', '.join(contents['targets'])}, {signature}"
    if target is not None and target not in contents["targets"]:
        following = f"scanops precompile SPECS.toml --targets {target} -o DIRECTORY, where there is an nvcc"
        return Finding(
            name="pack", status="missing", summary=f"{summary}: none for {target}", next=following, facts=facts
        )
    return Finding(name="pack", status="ok", summary=summary, facts=facts)


def _trouble(root: Path, contents: dict[str, Any]) -> tuple[str, str] | None:
    """(what keeps all or some of its kernels from being used, what to type), None where nothing does."""
    if contents["abi"] != ABI:
        return f"ABI {contents['abi']}, this version of scanops needs {ABI}", "build and pack it with this version"
    if contents["platform"] != platform():
        return f"built for {contents['platform']}, this is {platform()}", "build it on such a machine"
    found = ((entry["directory"], unsafe(root / entry["directory"])) for entry in contents["entries"])
    problems = [f"{name}: {problem}" for name, problem in found if problem]
    if not problems:
        return None
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return problems[0] + more, f"scanops verify {root}, then unpack it again"


def _signature(root: Path, facts: dict[str, object]) -> str:
    """In words. Raises BadSignature where a signature is asked for and none is good."""
    facts |= {"signed": (root / SIGNATURE).exists(), "signer": None}
    if environment.require_signed() is None:
        return "signed, by whom is not asked" if facts["signed"] else "not signed"
    from scanops.packs import trust

    facts["signer"] = trust.vouched(root).signer
    return f"signed by {str(facts['signer'])[:16]}"


def _targets(finding: Finding) -> list[object]:
    targets = finding.facts.get("targets")
    return targets if isinstance(targets, list) else []


def _again(root: Path) -> str:
    return f"scanops pack {root} -o FILE"


def _broken(root: Path, summary: str, following: str, facts: dict[str, object]) -> Finding:
    return Finding(name="pack", status="broken", summary=f"{root}: {summary}", next=following, facts=facts)
