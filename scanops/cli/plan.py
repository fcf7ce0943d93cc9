"""``scanops plan``: how a spec is computed and why, where its kernel is, and what it can reach."""

from __future__ import annotations

from dataclasses import asdict

import click

from scanops import environment
from scanops.cli.output import Command, print_json, resources_text, say, working
from scanops.cli.specs import spec_options, specs_of
from scanops.codegen.figures import item_bytes
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.diagnosis.forecast import Forecast, forecast
from scanops.diagnosis.lookup import Lookup, Search, look_up
from scanops.runtime.kernels import CPU, default_target
from scanops.runtime.obtain import obtain
from scanops.runtime.policies import STRICT
from scanops.store.entry import read_entry
from scanops.store.store import Store
from scanops.store.trust import refusal

__all__ = ["command", "gpu_target"]


@click.command(
    "plan",
    cls=Command,
    example="scanops plan sum-f32-n32768\nscanops plan sum-bf16-n4096-inner1024 --target sm_80 --lines 65536 --build",
)
@click.argument("slug", metavar="[SPEC]", required=False)
@click.option("--target", help="GPU architecture, or cpu; by default that of the GPU here, else sm_90.")
@click.option("--lines", type=int, help="Lines of the tensor; by default as many as make about 2^28 items.")
@click.option("--build", is_flag=True, help="Build the kernel if it is not in the store, for the compiler's figures.")
@click.option("--check", is_flag=True, help="Exit with 1 unless the kernel is in the store or in a pack.")
@spec_options
def command(
    slug: str | None,
    target: str | None,
    lines: int | None,
    build: bool,
    check: bool,
    as_json: bool,
    **options: str | int | bool | None,
) -> None:
    """Show how a spec is computed, and where its kernel is.

    Prints strategy, launch, bytes moved, registers, shared memory, occupancy and the time at full bandwidth, with
    reasons; then where the kernel is found, or why not: for each place the nearest kernels, field by field.

    SPEC is a spec's short name; the options after --check give the same field by field. Nothing is measured and no GPU
    is needed. Registers are the compiler's where the kernel is built, else estimates. A plan that `scanops tune` found
    on this GPU takes precedence over the planner's.
    """
    (spec,) = specs_of([slug] if slug is not None else [], options)
    target = target or gpu_target() or DEFAULT_TARGET
    expected = forecast(spec, target, lines=lines)  # a wrong request is reported before anything is built
    if build:
        with working(f"building {spec} for {target}"):
            obtain(spec, target, STRICT, Store())
    found = look_up(spec, target)
    if found.found and found.found.entry and (resources := read_entry(found.found.entry).resources):
        expected = forecast(spec, target, resources, lines=lines)
    if as_json:
        print_json({"ok": True, **_fields(expected), "target": target, "lookup": _lookup_fields(found)})
    else:
        say(f"{spec} on {target}", style="bold")
        for label, text in [*_lines(expected), *_lookup_lines(found)]:
            say(f"  {label:<11}{text}")
    click.get_current_context().exit(1 if check and not found.found else 0)


def gpu_target() -> str | None:
    """Return the architecture of the GPU here, None without a GPU or without torch."""
    try:
        target = default_target()
    except ModuleNotFoundError:
        return None
    return None if target == CPU else target


def _lines(found: Forecast) -> list[tuple[str, str]]:
    plan, held, limit = found.plan, found.occupancy, " and ".join(found.occupancy.limits)
    target = plan.target
    lines = [
        ("spec", plan.spec.describe()),
        ("strategy", plan.strategy),
        ("plan", plan.describe()),
        ("why", plan.why),
        ("from", _origin(found)),
        ("grid", f"{found.formula} blocks of {plan.threads} threads"),
    ]
    if found.floor_us is not None:
        lines += [
            ("", f"{found.blocks} for {found.lines} lines, {target.multiprocessors} multiprocessors ({target.part})"),
            ("bytes", f"{found.moved} moved, {item_bytes(plan.spec)} an item"),
            ("floor", f"{found.floor_us:.1f} us at the {target.bandwidth} GB/s of the {target.part}"),
        ]
    lines += [
        ("in flight", f"up to {found.in_flight} bytes a multiprocessor"),
        ("registers", resources_text(found.resources) if found.resources else f"about {found.registers} a thread"),
        ("shared", f"{plan.shared_bytes} bytes a block requested at the launch"),
        ("occupancy", f"{held.fraction:.2f}: {held.blocks} blocks, {held.threads} threads, limited by {limit}"),
    ]
    return lines


def _origin(found: Forecast) -> str:
    if found.entry is None:
        return "the planner's table"
    measured = found.entry.measured
    times = f"{measured.tuned_us:g} us against {measured.default_us:g} us of the planner's own"
    return f"{found.path}: {times}, on {measured.lines} lines, {found.entry.gpu}"


def _lookup_lines(found: Lookup) -> list[tuple[str, str]]:
    lines = [("identity", found.identity[:16])]
    for search in found.searches:
        lines += zip((search.place.kind, *[""] * 99), _search_lines(search), strict=False)
    if found.found:
        return [*lines, ("kernel", str(found.found.entry))]
    if environment.require_signed():  # a kernel that is built here is not signed
        return [*lines, ("kernel", f"not found; {refusal(found.spec.slug, found.target, ()).hint}")]
    return [*lines, ("kernel", f"not found: scanops build {found.spec.slug} --target {found.target}")]


def _search_lines(search: Search) -> list[str]:
    root = str(search.place.root)
    if search.hit:
        return [f"{root}: found by {'its index' if search.indexed else 'the text: its index lacks it'}"]
    if search.problem:
        return [f"{root}: not used: {search.problem}"]
    lines = [f"{root}: not found" + ("; the nearest:" if search.nearest else ", it is empty")]
    for near in search.nearest:
        lines.append(f"  {near.slug} for {near.target}")
        lines += [f"    {one.field}: requested {one.asked}, found {one.there}" for one in near.differences]
    return lines


def _fields(found: Forecast) -> dict[str, object]:
    plan = found.plan
    return {
        "slug": plan.spec.slug,
        "spec": plan.spec.to_dict(),
        "strategy": plan.strategy,
        "plan": plan.numbers(),
        "why": plan.why,
        "from": None if found.entry is None else {"file": str(found.path), **asdict(found.entry)},
        "launch": {"formula": found.formula, "threads": plan.threads, "lines": found.lines, "blocks": found.blocks},
        "bytes_an_item": item_bytes(plan.spec),
        "bytes_moved": found.moved,
        "floor_us": None if found.floor_us is None else round(found.floor_us, 3),
        "bytes_in_flight": found.in_flight,
        "registers": found.registers,
        "registers_from": "compiler" if found.resources else "estimate",
        "shared_bytes": {"declared": found.declared_bytes, "launch": plan.shared_bytes},
        "occupancy": asdict(found.occupancy),
        "resources": asdict(found.resources) if found.resources else None,
    }


def _lookup_fields(found: Lookup) -> dict[str, object]:
    return {
        "identity": found.identity,
        "key": found.key,
        "found": str(found.found.entry) if found.found else None,
        "searches": [
            {
                "kind": search.place.kind,
                "root": str(search.place.root),
                "hit": search.hit,
                "indexed": search.indexed,
                "entry": str(search.entry) if search.entry else None,
                "problem": search.problem,
                "nearest": [{**asdict(near), "directory": str(near.directory)} for near in search.nearest],
            }
            for search in found.searches
        ],
    }
