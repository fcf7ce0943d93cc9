"""``scanops plan``: how a spec is computed and why, what it can reach, and where its kernel is, or why nowhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scanops import environment
from scanops.build_request import CPU, BuildRequest, Resources, plan_for, request_of
from scanops.builders import unavailable
from scanops.cli.output import Answer, Command, SpecOrFile, import_option, resources_text
from scanops.codegen.figures import (
    bytes_in_flight,
    estimate_registers,
    item_bytes,
    lines_for,
    residents,
)
from scanops.codegen.kernel_key import FEW, MANY, KernelKey
from scanops.codegen.lines import key_for, keys_for
from scanops.codegen.planner import plan_kernel
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.precompile import expand_file
from scanops.runtime.kernels import default_target
from scanops.runtime.policies import POLICIES, STRICT
from scanops.specfile import SpecFile
from scanops.store.entry import read_entry
from scanops.store.layers import Place, list_candidates, places, refusal, usable_entry
from scanops.tuning import Choice, entry_for

if TYPE_CHECKING:
    from scanops.codegen.strategies.base import Plan

__all__ = ["command", "gpu_target"]

Facts = dict[str, Any]


@click.command(
    "plan",
    cls=Command,
    example="scanops plan sum-f32-n32768\nscanops plan sum-bf16-n4096-inner1024 --target sm_80 --lines 65536\n"
    "scanops plan specs.toml --target sm_90 --check",
)
@click.argument("spec", metavar="SPEC|SPECS.toml", type=SpecOrFile())
@click.option("--target", help="GPU architecture, or cpu; by default that of the GPU here, else sm_90.")
@click.option("--lines", type=int, help="Number of lines to plan for (default: about 2^28 items in total).")
@click.option("--check", is_flag=True, help="Exit with 1 unless every kernel is in the store or in a pack.")
@import_option
def command(spec: ScanSpec | SpecFile, target: str | None, lines: int | None, check: bool) -> Answer:
    """Show how a spec is computed, and where its kernel is.

    Prints strategy, launch, bytes moved, registers, shared memory, occupancy and the time at full bandwidth, with
    reasons; then where the kernel is found, or why not.

    SPEC is a spec's short name. Of a spec file SPECS.toml, prints for each kernel whether it is found, for the targets
    that the file names, or for --target. Nothing is measured and no GPU is needed. Registers are the compiler's where
    the kernel is built, else estimates. A plan that `scanops tune` has kept takes precedence over the planner's.
    """
    if isinstance(spec, SpecFile):
        if lines is not None:
            raise click.UsageError(
                "--lines goes with one SPEC: of a spec file the kernels for many and few are looked up"
            )
        return _check_file(spec, target, check)
    target = target or gpu_target() or DEFAULT_TARGET
    key = key_for(spec, target, lines)
    choice = None if target == CPU else entry_for(key)
    plan = plan_for(key, choice)
    found = look_up(key, choice)
    facts = _forecast(plan, lines, read_entry(Path(found["found"])).resources if found["found"] else None)
    origin = None if choice is None else {"file": str(choice.path), **asdict(choice.entry)}
    said = [*_lines(plan, choice, facts), *_lookup_lines(spec, target, found)]
    return Answer(
        {"slug": spec.slug, "target": target, **facts, "from": origin, "lookup": found},
        [(f"{spec} on {target}", "bold"), *(f"  {label:<11}{text}" for label, text in said)],
        code=1 if check and not found["found"] else 0,
    )


def gpu_target() -> str | None:
    """Return the architecture of the GPU here, None without a GPU or without torch."""
    try:
        target = default_target()
    except ModuleNotFoundError:
        return None
    return None if target == CPU else target


def _forecast(plan: Plan, lines: int | None, resources: Resources | None) -> Facts:
    """Return the figures of a kernel for --json; without the compiler's, registers and shared memory are estimates."""
    spec, target = plan.spec, plan.target
    if lines is None and not spec.takes_length:
        lines = lines_for(plan.key._replace(variant=MANY), target.multiprocessors)
    beside = spec.inner if spec.inner > 1 else 0
    grid = lines and plan.launch.numbers(lines, spec.capacity, target.multiprocessors, beside)
    blocks = grid.blocks if grid else None
    moved = None if lines is None else lines * spec.capacity * item_bytes(spec)  # each item read and written once
    registers = (resources and resources.registers) or estimate_registers(plan)
    declared = (resources and resources.shared_bytes) or int(getattr(plan, "declared_bytes", 0))
    occupancy = residents(plan, registers, declared)
    return {
        "spec": spec.to_dict(),
        "few": plan.key.is_few,
        "strategy": plan.strategy,
        "plan": plan.numbers(),
        "why": plan.why,
        "origin": plan.origin,
        "launch": {"threads": plan.threads, "lines": lines, "blocks": blocks},
        "bytes_an_item": item_bytes(spec),
        "bytes_moved": moved,
        "floor_us": None if moved is None else round(moved / target.bandwidth / 1e3, 3),
        "bytes_in_flight": bytes_in_flight(plan, occupancy.blocks),
        "registers": registers,
        "registers_from": "compiler" if resources else "estimate",
        "shared_bytes": {"declared": resources and resources.shared_bytes, "launch": plan.shared_bytes},
        "occupancy": occupancy._asdict(),
        "resources": asdict(resources) if resources else None,
    }


def _lines(plan: Plan, choice: Choice | None, facts: Facts) -> list[tuple[str, str]]:
    target, launch, held = plan.target, facts["launch"], facts["occupancy"]
    lines = [
        ("spec", plan.spec.describe()),
        ("strategy", plan.strategy),
        ("plan", plan.describe()),
        ("why", plan.why),
        ("lines", _situation(plan)),
        ("from", plan.origin),
        *_measurement(choice),
        ("block", f"{plan.threads} threads"),
    ]
    if launch["lines"] is not None:
        machine = f"{target.multiprocessors} multiprocessors ({target.part})"
        lines += [
            ("grid", f"{launch['blocks']} blocks for {launch['lines']} lines, {machine}"),
            ("bytes", f"{facts['bytes_moved']} moved, {facts['bytes_an_item']} an item"),
            ("floor", f"{facts['floor_us']:.1f} us at the {target.bandwidth} GB/s of the {target.part}"),
        ]
    used, limit = facts["resources"], f"limited by {' and '.join(held['limits'])}"
    return [
        *lines,
        ("in flight", f"up to {facts['bytes_in_flight']} bytes a multiprocessor"),
        ("registers", resources_text(Resources(**used)) if used else f"about {facts['registers']} a thread"),
        ("shared", f"{plan.shared_bytes} bytes a block requested at the launch"),
        (
            "occupancy",
            f"{held['fraction']:.2f}: {held['blocks']} blocks, {held['threads']} threads, {limit}",
        ),
    ]


def _situation(plan: Plan) -> str:
    """Say whether the plan is for many lines or for few, and what plan the others get."""
    if keys_for(plan.spec, plan.target.name) == (plan.key,):
        return "any number"
    other = plan_kernel(plan.key._replace(variant=MANY if plan.key.is_few else FEW))
    if plan.key.is_few:
        return f"few: one block per line would leave the GPU idle; on many lines: {other.describe()}"
    return f"many; on few, such as --lines {plan.spec.inner}: {other.describe()}"


def _measurement(choice: Choice | None) -> list[tuple[str, str]]:
    if choice is None:
        return []
    measured = choice.entry.measured
    times = f"{measured.tuned_us:g} us against {measured.default_us:g} us of the planner's own"
    return [("tuned", f"{choice.path}: {times}, on {measured.lines} lines, {choice.entry.gpu}")]


def _lookup_lines(spec: ScanSpec, target: str, found: Facts) -> list[tuple[str, str]]:
    lines = [("identity", found["identity"][:16])]
    for search in found["searches"]:
        if search["hit"]:
            what = "found"
        elif search["problem"]:
            what = f"not used: {search['problem']}"
        else:
            what = "not found"
        lines.append((search["kind"], f"{search['root']}: {what}"))
    if found["found"]:
        return [*lines, ("kernel", f"{found['found']}, a {found['form']} by {found['builder']}")]
    if environment.require_signed():  # a kernel that is built here is not signed
        return [*lines, ("kernel", f"not found; {refusal(spec.slug, target).hint}")]
    lines.append(("kernel", f"not found: scanops build {spec.slug} --target {target}"))
    for each in () if target == CPU else _builders(target):
        problem = unavailable(each, target)
        lines.append(
            ("builder", f"{each}: {f'not here: {problem.value}; {problem.hint}' if problem else 'works here'}")
        )
    return lines


def _check_file(file: SpecFile, target: str | None, check: bool) -> Answer:
    """Say for each kernel of a spec file whether it is found."""
    default = gpu_target() or DEFAULT_TARGET
    wanted = [(spec, own or default) for spec, own in file.wanted]
    keys = expand_file(wanted, [target] if target else [], file.path)
    kernels: list[dict[str, Any]] = []
    for key in keys:
        found = look_up(key, None if key.target == CPU else entry_for(key))
        kernels.append({"slug": key.spec.slug, "target": key.target, "few": key.is_few, "lookup": found})
    missing = [each for each in kernels if not each["lookup"]["found"]]
    lines = [
        f"{key}{', few lines' if key.is_few else ''}: {each['lookup']['found'] or 'not found'}"
        for key, each in zip(keys, kernels, strict=True)
    ]
    lines.append(f"{len(kernels) - len(missing)} of {len(kernels)} kernels found")
    if missing:
        targets = ",".join(dict.fromkeys(each["target"] for each in missing))
        lines.append(f"scanops precompile {file.path} --targets {targets} -o FOLDER builds what is missing")
    facts = {"file": str(file.path), "found": len(kernels) - len(missing), "missing": len(missing), "kernels": kernels}
    return Answer(facts, lines, code=1 if check and missing else 0)


# ---- the lookup of the kernel


def look_up(key: KernelKey, choice: Choice | None) -> Facts:
    """Look for a kernel as ``scanops.compile`` does and return what each place has. Builds nothing.

    The result is for --json: the ``identity``; the folder ``found``, None on a miss; and ``searches``, one for each
    place in the order of lookups.
    """
    request = request_of(key, choice, _builders(key.target))
    searches = [_search(place, request) for place in places()]
    found = next((search["entry"] for search in searches if search["hit"]), None)
    entry = read_entry(Path(found)) if found else None
    identity = entry.identity if entry else next(iter(request.identities.values()))
    made = {"form": entry and entry.form, "builder": entry and entry.builder}
    return {"identity": identity, "found": found, **made, "searches": searches}


def _builders(target: str) -> tuple[str, ...]:
    """Return who may build for a target, in the order in which a call asks."""
    return STRICT.builders if target == CPU else POLICIES["build"].list_builders()


def _search(place: Place, request: BuildRequest) -> Facts:
    """Return whether a place has the kernel, or why it is not used."""
    facts: Facts = {"kind": place.kind, "root": str(place.root), "hit": False, "entry": None, "problem": None}
    if place.unused:
        return {**facts, "problem": place.unused}
    for name, identity in list_candidates(place.root, tuple(request.identities.values()))[:1]:
        verdict = usable_entry(place.root / name, identity)
        problem = verdict if isinstance(verdict, str) else None
        return {**facts, "hit": not problem, "entry": str(place.root / name), "problem": problem}
    return facts
