"""The items that operators are tried on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from scanops.codegen.dtypes import dtype_named

__all__ = ["LAW_DTYPES", "SCAN_DTYPES", "drawn_from"]

# Of each kind: where laws are tested, so that rounding is far below what a broken law does; what is scanned by default;
# and the samples, to which the dtype's own bounds are added for integers. Complex infinities are none: multiplied by 1
# they are NaN.
LAW_DTYPES = {"float": torch.float64, "int": torch.int64, "bool": torch.bool, "complex": torch.complex128}
SCAN_DTYPES = {"float": torch.float32, "int": torch.int32, "bool": torch.bool, "complex": torch.complex64}
SAMPLES: dict[str, tuple[complex, ...]] = {
    "float": (1.0, 0.0, -1.0, 2.0, 0.5, -1.5, 3.0, 0.1, -0.0, math.nan, math.inf, -math.inf),
    "int": (1, 0, -1, 2, 3, -5, 7, 100),
    "bool": (0, 1),
    "complex": (1, 0, -1, 1j, 2, -0.5j, 1 + 1j, 0.5 - 1.5j, -1 + 0.1j, complex(math.nan, math.nan)),
}


def drawn_from(dtype: torch.dtype, samples: Sequence[complex] | None) -> Sequence[complex]:
    """The samples that a dtype holds."""
    row = dtype_named(dtype)
    if samples is None:
        bounds = (row.lowest, row.highest) if row.kind == "int" else ()
        samples = (*SAMPLES[row.kind], *bounds)
    if row.kind == "complex":
        return [complex(item) for item in samples]
    real = [item.real for item in samples if not item.imag]
    if row.kind == "float":
        return [float(item) for item in real] or [0.0, 1.0]
    return [int(item) for item in real if math.isfinite(item) and row.lowest <= item <= row.highest] or [0, 1]
