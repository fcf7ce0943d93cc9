"""Kernels of linked ranks, one after the other on one GPU: what handing states on costs where no rank waits.

``python -m benchmarks linked_kernels --out FILE`` gives each of three ranks the same shard on this GPU, and launches
their kernels in scan order, the backward ones against it: every state has arrived before the kernel that reads it
begins. Times are medians of CUDA events, the baseline is the scan of one GPU of that shard. What a row of
``benchmarks distributed`` loses beyond this is waiting. Each line of FILE is the JSON of one cell: of the ranks in scan
order, the first sends, the second receives and sends, the third receives. Without a GPU, kernels of small shapes are
emulated.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

import scanops
from benchmarks.distributed import write_row
from scanops.distributed.groups import Group
from scanops.distributed.links import HEAD_WORDS, Link, Memory
from scanops.ops.dispatch import run
from scanops.ops.node import ScanFunction
from scanops.ops.serving import serve
from scanops.requests.call import Call
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs

__all__ = ["main"]

RANKS = 3
HALF = 2**18  # words of half an inbox
WAIT_SECONDS = 3  # of a kernel, should a state not have arrived
REPEATS = 11
SHAPES = {"rows": ((4096, 2**18), (32768, 8192)), "columns": ((8, 16384, 4096), (8, 8192, 2560))}
SMALL = {"rows": ((4, 300),), "columns": ((2, 300, 64),)}
DTYPES = torch.float32, torch.bfloat16
Outputs = tuple[Tensor, ...]


class OwnLink(Link):
    """The link of one of several ranks that share a GPU and a process."""

    def __init__(self, memories: Sequence[Tensor], position: int) -> None:
        own = memories[position]
        super().__init__(Group(None, len(memories), position), own.device, None)
        heads = [each[:HEAD_WORDS] for each in memories]
        self._memories.append(Memory(tuple(each.data_ptr() for each in memories), HALF, own, heads, None))
        own[:HEAD_WORDS].copy_(torch.tensor([0, 0, WAIT_SECONDS * 10**9, self.address]))


class Received(NamedTuple):
    """A forward pass whose node saves the carry-in that reached its rank."""

    work: Any  # of ScanFunction
    carry_in: list[Tensor | None]

    @property
    def kind(self) -> Any:
        """What equal calls have in common."""
        return self.work.kind

    def compute(self, tensors: tuple[Tensor | None, ...]) -> Outputs:
        """Launch, and read what reached this rank."""
        found: Outputs = self.work.compute(tensors)
        call = self.kind.request.call
        receives = call.link is not None and call.op == "linear" and call.link.fields(call.reverse)["linked_in"]
        lines = line_shape(found[0].shape, call.dim)
        self.carry_in.append(call.link.view_carry_in(self.kind, lines).read() if receives else None)
        return found


class ReceivedNode(ScanFunction):
    """The node of such a pass."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        work, *tensors, _ = inputs
        ScanFunction.setup_context(ctx, (work, *tensors, work.carry_in[0]), output)


def record(work: Any, tensors: tuple[Tensor | None, ...]) -> Outputs:
    """Return the results of a pass, recorded by autograd."""
    return ReceivedNode.record(Received(work, []), tensors)


def measure(shape: tuple[int, ...], op: str, dtype: torch.dtype, links: Sequence[Link], repeats: int) -> dict[str, Any]:
    """Return the milliseconds of each rank and of one GPU, forward and backward."""
    device = links[0].device

    def draw(low: float) -> Tensor:
        return (torch.rand(shape, device=device) * (1 - low) + low).to(dtype)

    x, gate, grad = draw(-0.5), draw(0.8) if op == "linear" else None, draw(-0.5)
    leaves = [each.requires_grad_() for each in (x, gate) if each is not None]

    def scan(link: Link | None) -> Tensor:
        return serve(Call(op, 1, link=link), Inputs(x, None, gate), run, eager=True, record=record)[0]

    times: dict[str, list[Callable[[], float]]] = {}

    def time(name: str, call: Callable[[], Any]) -> Any:
        if device.type == "cpu":
            start = perf_counter()
            found, took = call(), (perf_counter() - start) * 1000
            times.setdefault(name, []).append(lambda: took)
            return found
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        found = call()
        end.record()
        times.setdefault(name, []).append(lambda: begin.elapsed_time(end))
        return found

    names = ["sends", "receives_and_sends", "receives"]
    for _ in range(repeats):
        with torch.no_grad():
            time("one_gpu_ms", partial(scan, None))
            for name, link in zip(names, links, strict=True):
                time(f"{name}_ms", partial(scan, link))
        y = scan(None)
        time("backward_one_gpu_ms", partial(torch.autograd.grad, y, leaves, grad))
        results = [scan(link) for link in links]
        for name, y in zip(names, results[::-1], strict=True):
            time(f"backward_{name}_ms", partial(torch.autograd.grad, y, leaves, grad))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {name: round(statistics.median(each() for each in found), 4) for name, found in times.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks linked_kernels",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="append a JSON line for each cell to this file")
    parser.add_argument("--only", default="", help="cells whose name, operator and dtype hold this text")
    options = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
    gpu = torch.cuda.get_device_name() if has_gpu else "none: emulated kernels"
    write_row(options.out, {"gpu": gpu, "torch": torch.__version__, "cuda": torch.version.cuda,
                            "date": datetime.date.today().isoformat()})  # fmt: skip
    memories = [torch.zeros(HEAD_WORDS + 2 * HALF, dtype=torch.int64, device=device) for _ in range(RANKS)]
    links = [OwnLink(memories, position) for position in range(RANKS)]
    with contextlib.nullcontext() if has_gpu else scanops.emulate():
        for name, shapes in (SHAPES if has_gpu else SMALL).items():
            for shape, op, dtype in ((s, o, d) for s in shapes for o in ("sum", "linear") for d in DTYPES):
                cell = f"{name} {' x '.join(map(str, shape))}"
                if options.only not in f"{cell} {op} {dtype}":
                    continue
                row = measure(shape, op, dtype, links, REPEATS if has_gpu else 1)
                write_row(options.out, {"cell": cell, "op": op, "dtype": str(dtype), **row})
                if has_gpu:
                    torch.cuda.empty_cache()
    return 0
