"""What every plan for a scanned dimension that is not the last has: a panel's shape, its operands and its ring."""

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
    """A panel whose tiles are read from the operands, through shared memory or straight to registers."""

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
        """Whether lanes that exchange rows put results where others have items: shifted, or against the scan order."""
        return self.realigns or any(operand.falls for operand in self.operands)

    def words(self, name: str) -> int:
        """32-bit words that an access of an operand is taken apart into, 0: it never is."""
        packed = (operand for operand in self.operands if operand.realigned and operand.packed > 1)
        return next((len(operand.parts) for operand in packed if operand.name == name), 0)

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: where operands end that begin off a boundary."""
        return self.realigns

    @property
    def unaligned_output(self) -> bool:
        """Whether the output may begin off the boundary of an access."""
        return self.realigns

    @property
    def begins_empty(self) -> bool:
        """Whether some fold begins with the identity of every column."""
        return True

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls."""
        return (*self.code.intrinsics, *self.ring_intrinsics)

    @property
    def ring_intrinsics(self) -> tuple[str, ...]:
        """Those of them that tiles in shared memory take."""
        return ("dynamic", "copies", *(("streams",) if self.streams else ())) if self.staged else ()

    @property
    def streams(self) -> bool:
        """Whether some copies pass by the first cache."""
        return self.staged and any(operand.streams for operand in self.operands)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; 0 where declared arrays are enough."""
        return self.stages * sum(prod(operand.stage_shape) * operand.access_bytes for operand in self.operands)

    @property
    def alignments(self) -> dict[str, int]:
        """Bytes of the boundary that accesses of an operand keep to, by its C type."""
        sizes = {operand.type: operand.access_bytes for operand in self.operands}
        sizes |= {out.type: self.vector * size for out, size in zip(self.results, self.spec.result_bytes, strict=True)}
        return {name: min(ACCESS_BYTES, size) for name, size in sizes.items()}

    @property
    def state_alignment(self) -> int:
        """Bytes of the boundary that the states of a thread keep to in shared memory."""
        size = self.vector * self.code.state_bytes
        return min(ACCESS_BYTES, size & -size)

    @property
    def output_step(self) -> str:
        """Items from one row of the output to the next in scan order."""
        return self.minus + str(self.spec.inner)

    @property
    def first_index(self) -> str:
        """The row in memory of the first item of the thread whose scan position is ``first``."""
        last = "length - 1" if self.spec.length is None else self.spec.length - 1
        return f"({last} - first)" if self.spec.reverse else "first"
