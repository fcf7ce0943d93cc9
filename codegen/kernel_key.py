"""``KernelKey``: what a kernel is planned, built, stored, recorded and looked up by."""

from __future__ import annotations

from typing import Literal, NamedTuple

from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import CPU, DEFAULT_TARGET, Target, target_named

# Two kernels of one spec may differ in what they are planned for: as many lines as fill the GPU, or so few that one
# block for each line would leave it idle.
Variant = Literal["many", "few"]
MANY: Variant = "many"
FEW: Variant = "few"


class KernelKey(NamedTuple):
    """A spec, the target that it is compiled for, and the variant of its kernel.

    >>> print(KernelKey(ScanSpec(op="sum", dtype="float32", length=32768), "sm_90", FEW))
    sum-f32-n32768 for sm_90, few lines
    """

    spec: ScanSpec
    target: str  # an architecture such as "sm_90", or "cpu" for the emulator
    variant: Variant = MANY

    def __str__(self) -> str:
        return f"{self.spec.slug} for {self.target}" + ", few lines" * self.is_few

    @property
    def is_few(self) -> bool:
        """Whether the kernel is planned for few lines; it serves any number of them."""
        return self.variant == FEW

    @property
    def architecture(self) -> Target:
        """The row of the GPU whose plans the target uses: the emulator runs those of the default target.

        Raises UnsupportedRequest for an unknown target.
        """
        return target_named(DEFAULT_TARGET if self.target == CPU else self.target)


def variant_for(is_few: bool) -> Variant:
    """Return the variant that files and command lines call few, or not."""
    return FEW if is_few else MANY
