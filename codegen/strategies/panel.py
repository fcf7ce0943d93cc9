"""A panel's shape, operands and ring, for every plan whose scanned dimension is not the last."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from scanops.codegen.spec import Source
from scanops.codegen.strategies.panel_operand import PanelOperand
from scanops.codegen.strategies.panel_shape import PanelShape
from scanops.codegen.strategies.rows import ACCESS_BYTES

__all__ = ["PanelPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlan(PanelShape):
    """A panel whose tiles are read through shared memory or straight to registers."""

    @property
    def operands(self) -> tuple[PanelOperand, ...]:
        """The inputs, in the order of the kernel's parameters."""
        return tuple(self._operand(source) for source in self.sources)

    def _operand(self, source: Source) -> PanelOperand:
        return PanelOperand(
            name=source.name,
            type=source.type,
            pointer=source.pointer,
            bytes=source.dtype.bytes,
            pieces=source.dtype.parts,
            scan_order=self.across,
            whole=not self.apart,
            realigned=self.realigns,
            placed=None if source.layout == "dense" else source.layout,
            copies_async=self.target.copies_async,
            shape=self,
        )

    @property
    def overwrites(self) -> bool:
        """Whether lanes that exchange rows store results over items of other lanes: shifted, or against the scan
        order.
        """
        return self.realigns or any(operand.falls for operand in self.operands)

    def words(self, name: str) -> int:
        """Number of 32-bit words that an access of an operand is split into; 0: it is not split."""
        packed = (operand for operand in self.operands if operand.realigned and operand.packed > 1)
        return next((len(operand.parts) for operand in packed if operand.name == name), 0)

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: blocks do not correspond to lines one to one."""
        return self.realigns

    @property
    def unaligned_output(self) -> bool:
        """Whether the output may start off the boundary of an access."""
        return self.realigns

    @property
    def begins_empty(self) -> bool:
        """Whether some fold starts from the identity of every column."""
        return True

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls."""
        return (*self.code.intrinsics, *self.ring_intrinsics)

    @property
    def ring_intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 that tiles in shared memory need."""
        return ("dynamic", "copies", *(("streams",) if self.streams else ())) if self.staged else ()

    @property
    def streams(self) -> bool:
        """Whether some copies bypass L1."""
        return self.staged and any(operand.streams for operand in self.operands)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; 0 where declared arrays are enough."""
        return self.stages * sum(prod(operand.stage_shape) * operand.access_bytes for operand in self.operands)

    @property
    def alignments(self) -> dict[str, int]:
        """Alignment in bytes of the accesses of each operand, by C type."""
        sizes = {operand.type: operand.access_bytes for operand in self.operands}
        sizes |= {out.type: self.vector * size for out, size in zip(self.results, self.spec.result_bytes, strict=True)}
        return {name: min(ACCESS_BYTES, size) for name, size in sizes.items()}

    @property
    def state_alignment(self) -> int:
        """Alignment in bytes of a thread's states in shared memory."""
        size = self.vector * self.code.state_bytes
        return min(ACCESS_BYTES, size & -size)

    @property
    def output_step(self) -> str:
        """Items from one row of the output to the next in scan order."""
        return self.minus + str(self.spec.inner)

    @property
    def first_index(self) -> str:
        """Row in memory of the first item of the thread whose scan position is ``first``."""
        last = "length - 1" if self.spec.length is None else self.spec.length - 1
        return f"({last} - first)" if self.spec.reverse else "first"
