"""What is known of a kernel before it runs: its plan with reasons, its launch, its bytes, its registers, its floor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scanops.builders.toolchain import find_nvcc, require_target
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
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.runtime.kernels import compile as compile_kernel
from scanops.tuning.choice import tuned_plan

if TYPE_CHECKING:
    from scanops.artifact import Resources
    from scanops.codegen.occupancy import Occupancy
    from scanops.codegen.strategies.base import Plan
    from scanops.tuning.files import Entry

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One kernel, described."""

    plan: Plan
    entry: Entry | None  # of a file of measured plans; None: the planner's own table
    path: Path | None  # that file
    formula: str  # blocks of a launch, over lines and multiprocessors
    lines: int | None  # that the figures below are for; None for a kernel whose length is an argument
    blocks: int | None
    resources: Resources | None  # what nvcc says
    note: str  # why it was not asked, empty otherwise
    registers: int  # nvcc's, else the plan's own estimate
    occupancy: Occupancy
    in_flight: int  # bytes a multiprocessor has asked for at the most, before the first arrive

    @property
    def declared_bytes(self) -> int | None:
        """Shared memory that the kernel declares, a block; None where nvcc was not asked."""
        return self.resources.shared_bytes if self.resources else None

    @property
    def moved(self) -> int | None:
        """Bytes that must move: every item read once and written once."""
        return None if self.lines is None else self.lines * self.plan.spec.capacity * item_bytes(self.plan.spec)

    @property
    def floor_us(self) -> float | None:
        """Microseconds in which the largest common GPU of the target moves them."""
        return None if self.moved is None else floor_microseconds(self.plan, self.moved)


def forecast(spec: ScanSpec, target: str, *, lines: int | None = None, build: bool = True) -> Forecast:
    """Everything about the kernel for ``spec`` that needs no GPU.

    With ``build`` the kernel is built, or found in the store, for the compiler's own figures; without nvcc, or where
    it does not know the target, the plan's estimate stands in and the note says so.

    Raises:
        UnsupportedRequest: an unknown target, or a number of lines that no tensor of this spec has.
        BadTuning: a file of measured plans that cannot be used.
    """
    plan, choice = tuned_plan(spec, target)
    if lines is not None and (lines < 1 or lines % spec.inner):
        raise UnsupportedRequest(
            f"a plan of {spec} for {lines} lines",
            allowed=f"a positive multiple of {spec.inner}, the lines side by side",
            value=f"--lines {lines}",
            hint=f"pass --lines {max(1, lines // spec.inner) * spec.inner}",
        )
    if not spec.takes_length:
        lines = lines_for(spec, plan.target.multiprocessors) if lines is None else lines
    grid = grid_of(render(plan))
    resources, note = _compiled(spec, target) if build else (None, "nvcc was not asked (--no-build)")
    registers = resources.registers if resources and resources.registers else expected_registers(plan)
    declared = (resources.shared_bytes if resources else None) or int(getattr(plan, "declared_bytes", 0))
    occupancy = residents(plan, registers, declared)
    return Forecast(
        plan=plan,
        entry=choice.entry if choice else None,
        path=choice.path if choice else None,
        formula=grid.formula,
        lines=lines,
        blocks=None if lines is None else grid.blocks(lines, plan.target.multiprocessors, _neighbours(spec)),
        resources=resources,
        note=note,
        registers=registers,
        occupancy=occupancy,
        in_flight=bytes_in_flight(plan, occupancy.blocks),
    )


def _neighbours(spec: ScanSpec) -> int | None:
    """Lines that lie side by side: all of them unless they are columns."""
    return spec.inner if spec.inner > 1 else None


def _compiled(spec: ScanSpec, target: str) -> tuple[Resources | None, str]:
    try:
        require_target(find_nvcc(), target)
    except BuildFailure:
        return None, "there is no nvcc here: registers are estimated from the plan"
    except UnsupportedRequest as problem:
        return None, f"nvcc cannot be asked: {problem.allowed}"
    return compile_kernel(spec, target).resources, ""
