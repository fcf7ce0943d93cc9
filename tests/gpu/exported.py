"""The five problems from exported files, on a GPU, in a process that cannot import scanops.

python exported.py FOLDER NAME...: FOLDER has NAME.py for each; prints a line for each call that was right.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "exports"))
alone: Any = importlib.import_module("alone")  # which hides scanops before torch is imported
torch: Any = importlib.import_module("torch")

DEVICE = "cuda"
ROWS = 2048  # that torch computes at a time
CHUNK = 2**26  # items that are drawn at a time


def signs(shape: tuple[int, ...], choices: tuple[int, ...], seed: int) -> Any:
    """Small whole numbers, whose sums and products are exact in float32."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    drawn = torch.randint(len(choices), shape, dtype=torch.uint8, device=DEVICE, generator=generator)
    table = torch.tensor(choices, dtype=torch.float32, device=DEVICE)
    x = torch.empty(shape, dtype=torch.float32, device=DEVICE)
    for part, out in zip(drawn.view(-1).split(CHUNK), x.view(-1).split(CHUNK), strict=True):
        out.copy_(table[part.long()])  # an index takes 8 bytes
    return x


def exclusive(x: Any, dim: int) -> Any:
    """As KernelBench's problem 92 has it since its shapes were mended: a zero in front, the last item left out."""
    zero = torch.zeros_like(x.select(dim, 0).unsqueeze(dim))
    return torch.cumsum(torch.cat((zero, x), dim=dim).narrow(dim, 0, x.size(dim)), dim=dim)


# name -> (values to draw from, shape, dims, masked, what torch says)
PROBLEMS: dict[str, tuple[Any, ...]] = {
    "cumprod": ((1, 1, -1), (32768, 32768), (-1,), False, torch.cumprod),
    "cumprod_any_dim": ((1, 1, -1), (1024, 1024), (0, 1), False, torch.cumprod),
    "cumsum_reverse": ((-1, 0, 1), (32768, 32768), (1,), False, lambda x, d: x.flip(d).cumsum(d).flip(d)),
    "masked_cumsum": ((-1, 0, 1), (32768, 32768), (1,), True, torch.cumsum),
    "cumsum_exclusive": ((-1, 0, 1), (32768, 32768), (1,), False, exclusive),
}


def right(module: Any, name: str, dim: int, mask_dtype: Any) -> bool:
    """Whether a file gives what torch does, bit for bit."""
    choices, shape, _, masked, reference = PROBLEMS[name]
    x = signs(shape, choices, 1)
    mask = signs(shape, (0, 1), 2).to(mask_dtype) if masked else None
    with torch.no_grad():
        y = module.ModelNew(dim)(x) if mask is None else module.ModelNew(dim)(x, mask)
    parts = ROWS if dim % x.ndim else shape[0]
    masks = mask.split(parts) if mask is not None else [None] * len(x.split(parts))
    return all(
        torch.equal(ys, reference(xs if ms is None else xs * ms, dim))
        for xs, ys, ms in zip(x.split(parts), y.split(parts), masks, strict=True)
    )


def queued(module: Any) -> bool:
    """Whether a scan runs on the current stream, and in a graph that is captured and replayed."""
    x = torch.ones(1024, 1024, device=DEVICE)
    model, side = module.ModelNew(1), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)  # long enough for a scan on another stream to read what x was
        x.fill_(-1)
        y = model(x)
    side.synchronize()
    graph, held = torch.cuda.CUDAGraph(), x.clone()
    with torch.cuda.graph(graph):
        z = model(held)
    held.copy_(torch.ones_like(held))
    graph.replay()
    torch.cuda.synchronize()
    return torch.equal(y, torch.cumprod(x, 1)) and torch.equal(z, torch.ones_like(z))


def rows(module: Any) -> bool:
    """Whether GPU MODE's function scans one row of each of its lengths, new or into a given output."""
    for length in (1023, 1024, 1025, 2048, 4096, 2**18, 2**20, 2**24, 2**28):
        x = signs((length,), (-1, 0, 1), length)
        wanted = torch.cumsum(x, 0)
        y = torch.empty_like(x)
        if not torch.equal(module.custom_kernel(x), wanted) or module.custom_kernel((x, y)) is not y:
            return False
        if not torch.equal(y, wanted):
            return False
    return True


def main(folder: str, *names: str) -> int:
    """Exit status: 0; 1 when something is wrong."""
    wrong = 0
    for name in names:
        module = alone.load(str(Path(folder) / f"{name}.py"), None)
        problem = name.split("-")[0]
        checks = {"gpumode": rows, "queued": queued}.get(problem)
        if checks is not None:
            found = {"": checks(module)}
        else:
            masks = (torch.bool, torch.float32) if name == "masked_cumsum-kernelbench" else (torch.bool,)
            found = {
                f"{dim} {mask}": right(module, problem, dim, mask) for dim in PROBLEMS[problem][2] for mask in masks
            }
        wrong += list(found.values()).count(False)
        print(name, found, flush=True)
        torch.cuda.empty_cache()
    assert not [name for name in sys.modules if name.split(".")[0] == "scanops"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
