"""One row per GPU architecture: what a plan may rely on there.

Figures are the CUDA programming guide's "technical specifications per compute capability". ``multiprocessors`` is that
of the largest common part: plans use it only to tell few rows from many; a launch asks the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanops.errors import UnsupportedRequest

__all__ = ["DEFAULT_TARGET", "TARGETS", "Target", "target_named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU architecture as the planner sees it."""

    name: str  # as nvcc spells it
    multiprocessors: int
    threads: int  # resident threads a multiprocessor
    bfloat_convert: bool  # has an instruction from float to bfloat16

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor) as torch.cuda.get_device_capability gives it."""
        digits = self.name.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])


_ROWS = (
    Target(name="sm_70", multiprocessors=80, threads=2048, bfloat_convert=False),
    Target(name="sm_75", multiprocessors=72, threads=1024, bfloat_convert=False),
    Target(name="sm_80", multiprocessors=108, threads=2048, bfloat_convert=True),
    Target(name="sm_86", multiprocessors=84, threads=1536, bfloat_convert=True),
    Target(name="sm_89", multiprocessors=128, threads=1536, bfloat_convert=True),
    Target(name="sm_90", multiprocessors=132, threads=2048, bfloat_convert=True),
    Target(name="sm_100", multiprocessors=148, threads=2048, bfloat_convert=True),
    Target(name="sm_103", multiprocessors=148, threads=2048, bfloat_convert=True),
    Target(name="sm_120", multiprocessors=188, threads=1536, bfloat_convert=True),
)

TARGETS: dict[str, Target] = {row.name: row for row in _ROWS}
DEFAULT_TARGET = "sm_90"


def target_named(name: object) -> Target:
    """The row of an architecture, spelled as nvcc spells it: ``"sm_90"``."""
    row = TARGETS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            f"a kernel for the target {name!r}",
            allowed=", ".join(TARGETS),
            value=repr(name),
            hint="name one of the targets above; `scanops doctor` shows the one of this machine's GPU",
        )
    return row
