"""Time scans with ``map`` and ``then`` against the same expressions around PyTorch's scans, eager and compiled.

Options and figures are those of ``workloads``; results are compared with the composition in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import scanops
from benchmarks import workloads
from benchmarks.workloads import Function, Workload

STEP = 1e-3


def decay(x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """The logarithm of a state-space model's decay in one step."""
    return F.softplus(x + bias) * a


def decay_and_step(
    y: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What chunked state-space kernels read: the running sum, and the step that it was made of."""
    return y, F.softplus(x + bias)


def gates(x: torch.Tensor, r: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and value of a real-gated linear recurrent unit."""
    a = torch.exp(-8 * torch.sigmoid(r))
    return a, torch.sqrt(1 - a * a) * torch.sigmoid(i) * x


def decays_today(x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The running sum and the step by PyTorch."""
    step = F.softplus(x + bias)
    return (step * a).cumsum(1), step


def transmittance(x: torch.Tensor) -> torch.Tensor:
    """The weights of samples along rays by PyTorch."""
    passed = (1 - x).cumprod(1)
    return torch.cat([torch.ones_like(passed[:, :1]), passed[:, :-1]], 1) * x


def list_fused_workloads(device: str, small: bool = False) -> Iterator[Workload]:
    """Yield the scans; ``small`` cuts every dimension above 300."""

    def row(name: str, op: str, today: Function, *inputs: torch.Tensor, outputs: int = 1, **options: Any) -> Workload:
        def ours(*given: torch.Tensor) -> Any:
            return scanops.scan(given, op, 1, **options)

        shape, dtype = " x ".join(map(str, inputs[0].shape)), str(inputs[0].dtype).removeprefix("torch.")
        moved = sum(each.nbytes for each in inputs) + outputs * inputs[0].nbytes
        return Workload(
            name=f"{name}, {shape} {dtype}", inputs=inputs, ours=ours, today=today, moved=moved, trains=True
        )

    def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        sizes = (n if n <= 300 or not small else 256 + n % 8 for n in shape)
        return torch.randn(*sizes, device=device).to(dtype)

    weight: dict[str, Any] = {"map": lambda x: 1 - x, "then": lambda y, x: y * x, "exclusive": True}
    scaled: dict[str, Any] = {"map": torch.sigmoid, "then": lambda y, x: y * x * STEP}
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((8, 4096, 2560), (1, 4096, 48), (8, 2048, 64), (2, 32768, 80)):
            inputs = tuple(random(*each, dtype=dtype) for each in (shape, shape[-1:], shape[-1:]))
            yield row("decays", "sum", lambda *t: decays_today(*t)[0], *inputs, map=decay)
            yield row("decays and steps", "sum", decays_today, *inputs, outputs=2, map=decay, then=decay_and_step)
        for length in (192, 128):
            x = random(65536, length, dtype=dtype).sigmoid() * 0.1
            yield row("transmittance", "prod", transmittance, x, **weight)
        for rows, length in ((8192, 32768), (64, 2**20)):
            x = random(rows, length, dtype=dtype)
            yield row("running sum of a gate", "sum", lambda x: torch.sigmoid(x).cumsum(1) * x * STEP, x, **scaled)
        inputs = tuple(random(4, 4096, 2048, dtype=dtype) for _ in range(3))
        yield row("gated recurrence", "linear", lambda *t: scanops.linear_scan(*gates(*t), 1), *inputs, map=gates)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every scan and print a line for each."""
    return workloads.main(arguments, list_fused_workloads, __doc__)
