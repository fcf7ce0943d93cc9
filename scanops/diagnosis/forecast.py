"""What is known of a kernel before it runs: plan, launch, bytes moved, registers, occupancy, time at full bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scanops.codegen.figures import (
    bytes_in_flight,
    expected_registers,
    floor_microseconds,
    grid_of,
    item_bytes,
    lines_for,
    residents,
)
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.tuning.choice import tuned_plan

if TYPE_CHECKING:
    from scanops.artifact import Resources
    from scanops.codegen.occupancy import Occupancy
    from scanops.codegen.strategies.base import Plan
    from scanops.tuning.files import Entry

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The figures of one kernel."""

    plan: Plan
    entry: Entry | None  # of a file of measured plans; None: the planner's own plan
    path: Path | None  # that file
    formula: str  # blocks of a launch, as a function of lines and multiprocessors
    lines: int | None  # that the figures below are for; None for a kernel whose length is an argument
    blocks: int | None  # of that launch
    resources: Resources | None  # the compiler's figures, where the kernel is built
    registers: int  # a thread: the compiler's, else the plan's estimate
    occupancy: Occupancy
    in_flight: int  # most bytes that a multiprocessor has requested from memory at once

    @property
    def declared_bytes(self) -> int | None:
        """Static shared memory a block in bytes; None where the kernel is not built."""
        return self.resources.shared_bytes if self.resources else None

    @property
    def moved(self) -> int | None:
        """Bytes that must move: every item read once and written once."""
        return None if self.lines is None else self.lines * self.plan.spec.capacity * item_bytes(self.plan.spec)

    @property
    def floor_us(self) -> float | None:
        """Microseconds that moving these bytes takes at the full bandwidth of the target's largest common GPU."""
        return None if self.moved is None else floor_microseconds(self.plan, self.moved)


def forecast(spec: ScanSpec, target: str, resources: Resources | None = None, *, lines: int | None = None) -> Forecast:
    """Return the figures of the kernel for ``spec``, which need neither a GPU nor a compiler.

    ``resources`` are the compiler's figures; without them registers and shared memory are the plan's estimates.

    Raises:
        UnsupportedRequest: an unknown target, or a number of lines that no tensor of this spec has.
        BadTuning: a file of measured plans that cannot be used.
    """
    plan, choice = tuned_plan(spec, target)
    if lines is not None and (lines < 1 or lines % spec.inner):
        raise UnsupportedRequest(
            f"a plan of {spec} for {lines} lines",
            allowed=f"a positive multiple of {spec.inner}, the number of adjacent columns",
            value=f"--lines {lines}",
            hint=f"pass --lines {max(1, lines // spec.inner) * spec.inner}",
        )
    if not spec.takes_length:
        lines = lines_for(spec, plan.target.multiprocessors) if lines is None else lines
    grid = grid_of(render(plan))
    registers = resources.registers if resources and resources.registers else expected_registers(plan)
    declared = (resources.shared_bytes if resources else None) or int(getattr(plan, "declared_bytes", 0))
    occupancy = residents(plan, registers, declared)
    columns = spec.inner if spec.inner > 1 else None
    return Forecast(
        plan=plan,
        entry=choice.entry if choice else None,
        path=choice.path if choice else None,
        formula=grid.formula,
        lines=lines,
        blocks=None if lines is None else grid.blocks(lines, plan.target.multiprocessors, columns),
        resources=resources,
        registers=registers,
        occupancy=occupancy,
        in_flight=bytes_in_flight(plan, occupancy.blocks),
    )
