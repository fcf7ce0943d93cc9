"""``scanops plan``: how a spec is computed, and why."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from scanops.cli.output import Command, console, print_json, print_table, working
from scanops.cli.specs import spec_options, specs_of
from scanops.codegen.figures import item_bytes
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.diagnosis.forecast import Forecast, forecast
from scanops.runtime.kernels import CPU, default_target

__all__ = ["command", "usual_target"]


@click.command(
    "plan",
    cls=Command,
    example="scanops plan sum-f32-n32768\nscanops plan sum-bf16-n4096-inner1024 --target sm_80 --lines 65536",
)
@click.argument("slug", metavar="[SPEC]", required=False)
@click.option("--target", help="GPU architecture to plan for; by default that of the GPU here, else sm_90.")
@click.option("--lines", type=int, help="Lines of the tensor; by default as many as make about 2^28 items.")
@click.option("--no-build", is_flag=True, help="Do not ask nvcc for registers and shared memory.")
@spec_options
def command(
    slug: str | None,
    target: str | None,
    lines: int | None,
    no_build: bool,
    as_json: bool,
    **options: str | int | bool | None,
) -> None:
    """Show how a spec is computed: strategy, launch, bytes, registers, shared memory, occupancy, floor, and why.

    SPEC is a spec's short name; the options after --no-build say the same, field by field.

    A plan needs no GPU and nothing is measured. With nvcc the kernel is built into the store and its registers are the
    compiler's; without, they are estimated. A plan that `scanops tune` found on this GPU comes before the planner's.
    """
    (spec,) = specs_of([slug] if slug is not None else [], options)
    with working(f"planning {spec}"):
        found = forecast(spec, target or usual_target(), lines=lines, build=not no_build)
    if as_json:
        print_json(_fields(found))
    else:
        _print(found)


def usual_target() -> str:
    """The architecture of the GPU here, else the default one."""
    try:
        target = default_target()
    except ModuleNotFoundError:  # no torch: planning needs none
        target = CPU
    return DEFAULT_TARGET if target == CPU else target


def _print(found: Forecast) -> None:
    plan = found.plan
    console().print(Text(f"{plan.spec} on {plan.target.name}", style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(overflow="fold")
    for label, text in _lines(found):
        table.add_row(f"  {label}", text)
    print_table(table)


def _lines(found: Forecast) -> list[tuple[str, str]]:
    plan, held, limit = found.plan, found.occupancy, " and ".join(found.occupancy.limits)
    lines = [
        ("spec", plan.spec.describe()),
        ("strategy", plan.strategy),
        ("plan", plan.describe()),
        ("why", plan.why),
        ("from", _origin(found)),
        ("grid", f"{found.formula} blocks of {plan.threads} threads"),
    ]
    if found.lines is not None and found.moved is not None and found.floor_us is not None:
        target, blocks = plan.target, found.blocks
        lines += [
            ("", f"{blocks} for {found.lines} lines, {target.multiprocessors} multiprocessors in the {target.part}"),
            ("bytes", f"{found.moved} moved, {item_bytes(plan.spec)} an item"),
            ("floor", f"{found.floor_us:.1f} us at the {target.bandwidth} GB/s of the {target.part}"),
        ]
    asked = f"{plan.shared_bytes} asked for at the launch"
    declared = "declared not known" if found.declared_bytes is None else f"{found.declared_bytes} declared"
    lines += [
        ("in flight", f"up to {found.in_flight} bytes a multiprocessor"),
        ("registers", f"{found.registers} a thread" if found.resources else f"about {found.registers} a thread"),
        ("shared", f"bytes a block: {declared}, {asked}"),
        ("occupancy", f"{held.fraction:.2f}: {held.blocks} blocks, {held.threads} threads; {limit} allow no more"),
    ]
    if found.resources:
        spilled = (found.resources.spill_store_bytes or 0) + (found.resources.spill_load_bytes or 0)
        lines.append(("spills", f"{spilled} bytes"))
    return [*lines, *([("note", found.note)] if found.note else [])]


def _origin(found: Forecast) -> str:
    if found.entry is None:
        return "the planner's table"
    measured = found.entry.measured
    times = f"{measured.tuned_us:g} us against {measured.default_us:g} us of the planner's own"
    return f"{found.path}: {times}, on {measured.lines} lines, {found.entry.gpu}"


def _fields(found: Forecast) -> dict[str, object]:
    plan, held = found.plan, found.occupancy
    return {
        "ok": True,
        "slug": plan.spec.slug,
        "spec": plan.spec.to_dict(),
        "target": plan.target.name,
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
        "registers_from": "nvcc" if found.resources else "estimate",
        "shared_bytes": {"declared": found.declared_bytes, "launch": plan.shared_bytes},
        "occupancy": asdict(held),
        "resources": asdict(found.resources) if found.resources else None,
        "note": found.note or None,
    }
