"""What is found wrong with an operator."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding", "OperatorReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong with an operator."""

    law: str  # what does not hold
    dtype: str  # where
    example: str  # values that show it

    def __str__(self) -> str:
        return f"{self.law} ({self.dtype}): {self.example}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorReport:
    """What ``check_operator`` found, at most one finding for each law and dtype."""

    operator: str  # its name
    findings: tuple[Finding, ...]
    laws: int  # pairs of joined stretches that were compared
    scans: int  # that were held to the reference
    items: int  # of them
    strategies: tuple[str, ...]  # the families of kernels they ran in

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        done = f"{self.laws} joins, {self.scans} scans of {self.items} items ({', '.join(self.strategies)})"
        if self.ok:
            return f"{self.operator}: nothing wrong in {done}"
        return "\n".join([f"{self.operator}: {len(self.findings)} found in {done}", *map(str, self.findings)])
