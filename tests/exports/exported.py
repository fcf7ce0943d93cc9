"""An exported file on a GPU, in a process that cannot import scanops: ``python exported.py FILE PROBLEM``.

Exits with 0 where every call gives what torch does, bit for bit.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

alone: Any = importlib.import_module("alone")  # which hides scanops before torch is imported
torch: Any = importlib.import_module("torch")


def drawn(shape: tuple[int, ...], choices: tuple[int, ...], seed: int) -> Any:
    """Draw small whole numbers, whose sums and products are exact in float32."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    indices = torch.randint(len(choices), shape, device="cuda", generator=generator)
    return torch.tensor(choices, dtype=torch.float32, device="cuda")[indices]


def exclusive(x: Any, dim: int) -> Any:
    """Scan as KernelBench's problem 92 does: a zero in front, the last item left out."""
    zero = torch.zeros_like(x.select(dim, 0).unsqueeze(dim))
    return torch.cumsum(torch.cat((zero, x), dim=dim).narrow(dim, 0, x.size(dim)), dim=dim)


SHAPE = (2048, 32768)  # of KernelBench's problems, with fewer rows
# name -> (values to draw from, shape, dims, the dtypes of masks, what torch says)
PROBLEMS: dict[str, tuple[Any, ...]] = {
    "cumprod": ((1, 1, -1), SHAPE, (-1,), (None,), torch.cumprod),
    "cumprod_any_dim": ((1, 1, -1), (1024, 1024), (0, 1), (None,), torch.cumprod),
    "cumsum_reverse": ((-1, 0, 1), SHAPE, (1,), (None,), lambda x, d: x.flip(d).cumsum(d).flip(d)),
    "masked_cumsum": ((-1, 0, 1), SHAPE, (1,), (torch.bool, torch.float32), torch.cumsum),
    "cumsum_exclusive": ((-1, 0, 1), SHAPE, (1,), (None,), exclusive),
}


def check(call: Callable[..., Any], right: Callable[..., Any], x: Any) -> None:
    """Run a scan at once, queued on a stream that is busy, and replayed by a graph, each time on other data."""
    assert torch.equal(call(x), right(x))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)  # long enough for a scan on another stream to read what x was
        x.neg_()
        y = call(x)
    side.synchronize()
    assert torch.equal(y, right(x)), "on another stream"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(x)
    x.neg_()
    graph.replay()
    assert torch.equal(y, right(x)), "in a graph"


def rows(scan: Callable[..., Any]) -> None:
    """Scan one row of each of GPU MODE's lengths, new or into a given output."""
    for length in (1023, 1024, 1025, 2048, 4096, 2**18, 2**20, 2**24, 2**28):
        x = drawn((length,), (-1, 0, 1), length)
        y, wanted = torch.empty_like(x), torch.cumsum(x, 0)
        assert torch.equal(scan(x), wanted) and scan((x, y)) is y and torch.equal(y, wanted), length


def main(path: str, problem: str) -> None:
    """Run every call of a problem, which raises where one is wrong."""
    module = alone.load(path)
    if problem == "gpumode":
        rows(module.custom_kernel)
    else:
        choices, shape, dims, masks, reference = PROBLEMS[problem]
        for dim in dims:
            model = module.ModelNew(dim)
            for dtype in masks:
                given = () if dtype is None else (drawn(shape, (0, 1), 2).to(dtype),)
                check(
                    lambda x, model=model, given=given: model(x, *given),
                    lambda x, dim=dim, given=given: reference(x * given[0] if given else x, dim),
                    drawn(shape, choices, 1),
                )


if __name__ == "__main__":
    with torch.no_grad():
        main(*sys.argv[1:])
