"""Selective scans beside mamba_ssm's CUDA extension: forward, forward and backward, and the peak of memory.

``scanops.compat.selective_scan_fn`` is timed beside a copy of the least bytes, the bound of one exponential for each
state and step, the formula in PyTorch where a loop over time ends soon, torch's compiled ``associative_scan``, and the
functions of mamba_ssm's extension, called as that package calls them. ``--mamba FOLDER`` is a checkout of its sources,
of which half the instantiations are built (nvcc, some minutes), or a file of an extension built before. Results and
gradients are compared first. Prints a JSON line for each cell: microseconds, and bytes that are allocated at most
beside the inputs. ``--small`` compares small tensors on any device and measures nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.common import Row, append_line, child, parser, require_gpu
from benchmarks.timing import Timer, peak_bytes
from scanops import compat

BUDGET = 0.15  # seconds of runs for each figure
MOST_LOOP = 600  # steps of a loop over time in Python that is timed
MOST_ASSOCIATIVE = 2**28  # states in memory of the associative scan
EXPONENTIALS, MEGAHERTZ = 16, 1980  # of a multiprocessor in a cycle; the highest clock of an H100 and an H200
NEAR = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}  # relative, by norms
SOURCES = ("fwd_bf16", "fwd_fp32", "fwd_fp16", "bwd_bf16_real", "bwd_fp32_real", "bwd_fp16_real")
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The sizes of a selective scan."""

    batch: int
    channels: int
    length: int
    states: int = 16
    groups: int = 1
    dtype: torch.dtype = torch.bfloat16
    segment: int = 0  # mean length of packed sequences; 0: none
    last: bool = True  # time is contiguous, not channels

    def __str__(self) -> str:
        sizes = f"{self.batch} x {self.channels} x {self.length}, {self.states} states, {str(self.dtype)[6:]}"
        others = f", {self.groups} groups" * (self.groups > 1) + f", sequences of {self.segment}" * bool(self.segment)
        return sizes + others + ", channels contiguous" * (not self.last)


def cells(small: bool = False) -> Iterator[Cell]:
    """Yield the cells; ``small`` cuts their sizes."""
    for dtype in (torch.bfloat16, torch.float32):
        for batch, channels, length in ((8, 2048, 2048), (2, 4096, 8192), (16, 768, 512), (1, 5120, 16384)):
            yield Cell(batch=batch, channels=channels, length=length, dtype=dtype)
    for states in (1, 16):
        yield Cell(batch=64, channels=384, length=196, states=states, groups=4)
    yield Cell(batch=4, channels=2048, length=2048, states=64)
    yield Cell(batch=8, channels=2048, length=2048, dtype=torch.float16)
    yield Cell(batch=1, channels=2048, length=16384, segment=512)
    yield Cell(batch=8, channels=2048, length=2048, last=False)
    if small:
        yield Cell(batch=2, channels=8, length=33, states=3, dtype=torch.float32)


def make_inputs(cell: Cell, device: str) -> tuple[Tensors, torch.Tensor | None]:
    """Return u, delta, A, B, C, D, z and delta_bias of a cell, which require gradients, and offsets of sequences."""
    random = torch.Generator(device).manual_seed(2026)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=random, device=device).to(dtype)

    def of_channels() -> torch.Tensor:
        shape = (cell.batch, cell.channels, cell.length)
        if cell.last:
            return normal(*shape, dtype=cell.dtype)
        return normal(shape[0], shape[2], shape[1], dtype=cell.dtype).transpose(1, 2)

    def of_states() -> torch.Tensor:
        return normal(cell.batch, cell.groups, cell.states, cell.length, dtype=cell.dtype)

    a = -torch.rand(cell.channels, cell.states, generator=random, device=device) * 4 - 0.1
    bias = torch.rand(cell.channels, generator=random, device=device) - 3
    made = (of_channels(), of_channels(), a, of_states(), of_states(), normal(cell.channels), of_channels(), bias)
    offsets = None
    if cell.segment:
        count = cell.length // cell.segment
        inner = torch.randperm(cell.length - 1, generator=random, device=device)[: count - 1].sort().values + 1
        ends = torch.tensor([0, cell.length], device=device)
        offsets = torch.cat([ends[:1], inner, ends[1:]]).to(torch.int32)
    return tuple(each.requires_grad_() for each in made), offsets


def scan(inputs: Tensors, offsets: torch.Tensor | None) -> torch.Tensor:
    """Return the output by scanops."""
    u, delta, a, b, c, d, z, bias = inputs
    found = compat.selective_scan_fn(u, delta, a, b, c, d, z, bias, delta_softplus=True, cu_seqlens=offsets)
    assert isinstance(found, torch.Tensor)
    return found


def scan_by_steps(inputs: Tensors, offsets: torch.Tensor | None) -> torch.Tensor:
    """Return the output by a loop over time in PyTorch, in the dtype of A."""
    u, delta, a, b, c, d, z, bias = inputs
    wide = a.dtype
    steps = F.softplus(delta.to(wide) + bias[:, None])
    b, c = (each.to(wide).repeat_interleave(u.shape[1] // each.shape[1], 1) for each in (b, c))
    begins = set() if offsets is None else set(offsets.tolist())
    h, found = torch.zeros(u.shape[0], *a.shape, dtype=wide, device=u.device), []
    for t in range(u.shape[2]):
        h = h * 0 if t in begins else h
        h = torch.exp(steps[:, :, t, None] * a) * h + (steps[:, :, t] * u[:, :, t].to(wide))[..., None] * b[..., t]
        found.append((h * c[..., t]).sum(-1))
    y = torch.stack(found, -1) + d[:, None] * u.to(wide)
    return (y * F.silu(z.to(wide))).to(u.dtype)


def scan_associatively(inputs: Tensors) -> torch.Tensor:
    """Return the output by torch's associative scan of all states."""
    from torch._higher_order_ops.associative_scan import associative_scan

    u, delta, a, b, c, d, z, bias = inputs
    steps = F.softplus(delta.float() + bias[:, None])
    b, c = (each.float().repeat_interleave(u.shape[1] // each.shape[1], 1) for each in (b, c))
    gate = torch.exp(steps[:, :, None] * a[:, :, None])
    item = (steps * u.float())[:, :, None] * b

    def combine(older: Tensors, newer: Tensors) -> Tensors:
        return older[0] * newer[0], newer[0] * older[1] + newer[1]

    y = (associative_scan(combine, (gate, item), dim=3)[1] * c).sum(2) + d[:, None] * u.float()
    return (y * F.silu(z.float())).to(u.dtype)


def load_mamba(given: str) -> Any:
    """Return mamba_ssm's extension, from its sources or from a file."""
    path = Path(given)
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)  # half the instantiations are not there
    try:
        if path.is_file():
            spec = importlib.util.spec_from_file_location("selective_scan_cuda", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        from torch.utils.cpp_extension import load

        folder = path / "csrc" / "selective_scan"
        names = ["selective_scan.cpp", *(f"selective_scan_{each}.cu" for each in SOURCES)]
        undone = [f"-U__CUDA_NO_{each}__" for each in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS")]
        undone += ["-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "-U__CUDA_NO_BFLOAT162_OPERATORS__"]
        return load(
            "selective_scan_cuda",
            [str(folder / name) for name in names],
            extra_cflags=["-O3", "-std=c++17"],
            extra_cuda_cflags=["-O3", "-std=c++17", "--use_fast_math", "--expt-relaxed-constexpr", *undone],
            extra_ldflags=["-Wl,-z,lazy", "-Wl,--unresolved-symbols=ignore-all"],
        )
    finally:
        sys.setdlopenflags(flags)


def mamba_scan(module: Any) -> Callable[[Tensors], torch.Tensor]:
    """Return the function that mamba_ssm makes of its extension, with gradients."""

    class MambaScan(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
            u, delta, a, b, c, d, z, bias = (each if at in (2, 5, 7) else _rows(each) for at, each in enumerate(inputs))
            out, x, gated = module.fwd(u, delta, a, b, c, d, z, bias, True)
            ctx.save_for_backward(u, delta, a, b, c, d, z, bias, x, out)
            return gated  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            u, delta, a, b, c, d, z, bias, x, out = ctx.saved_tensors
            found = module.bwd(u, delta, a, b, c, d, z, bias, _rows(grad), x, out, torch.empty_like(z), True, False)
            du, ddelta, da, db, dc, dd, dbias, dz, *_ = found
            return du, ddelta, da, db.to(b.dtype), dc.to(c.dtype), dd, dz, dbias

    return lambda inputs: MambaScan.apply(*inputs)  # type: ignore[no-untyped-call]


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the relative difference of two tensors by their norms."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def least_bytes(inputs: Tensors) -> int:
    """Return the bytes of the inputs and of one output."""
    return sum(each.numel() * each.element_size() for each in (*inputs, inputs[0]))


def measure(cell: Cell, timer: Timer, mamba: Callable[[Tensors], torch.Tensor] | None) -> Row:
    """Return the figures of a cell."""
    inputs, offsets = make_inputs(cell, "cuda")
    grad = torch.randn_like(inputs[0]).contiguous()
    peers: dict[str, Callable[[], torch.Tensor]] = {"scanops": lambda: scan(inputs, offsets)}
    if mamba is not None:
        peers["mamba_ssm"] = lambda: mamba(inputs)
    states = inputs[0].numel() * cell.states
    if cell.length <= MOST_LOOP:
        peers["loop"] = lambda: scan_by_steps(inputs, offsets)
    if states <= MOST_ASSOCIATIVE and offsets is None:
        compiled = torch.compile(scan_associatively)
        peers["associative_scan"] = lambda: compiled(inputs)
    row: Row = {"cell": str(cell)}
    passes: dict[str, dict[str, Callable[[], object]]] = {"forward": {}, "training": {}}
    wanted = None
    for name, run in peers.items():
        try:
            with torch.no_grad():
                y = run()
            if offsets is None or name == "scanops":
                wanted = y if wanted is None else wanted
                row[f"{name}_difference"] = difference(y, wanted)
            torch.autograd.grad(run(), inputs, grad)
        except Exception as problem:  # a peer that fails is named
            row[f"{name}_failed"] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:120]}"
            continue

        def forward(run: Callable[[], torch.Tensor] = run) -> object:
            with torch.no_grad():
                return run()

        def train(run: Callable[[], torch.Tensor] = run) -> object:
            return torch.autograd.grad(run(), inputs, grad)

        passes["forward"][name], passes["training"][name] = forward, train
        row[f"{name}_peak"] = peak_bytes(train)
    moved = least_bytes(inputs)
    for kind, runs in passes.items():
        found = timer.samples({"copy": timer.copy(moved), **runs}, moved)
        row[kind] = {name: round(each.ms * 1e3, 1) for name, each in found.items()}
    properties = torch.cuda.get_device_properties(0)
    row["exponentials"] = round(states / (properties.multi_processor_count * EXPONENTIALS * MEGAHERTZ), 1)
    return row


def check(cell: Cell, device: str) -> Row:
    """Compare a cell of small sizes with the loop in float64."""
    cut = Cell(
        batch=min(cell.batch, 2),
        channels=8 if cell.groups > 1 else 6,
        length=min(cell.length, 40),
        states=min(cell.states, 17),
        groups=cell.groups,
        dtype=cell.dtype,
        segment=10 if cell.segment else 0,
        last=cell.last,
    )
    inputs, offsets = make_inputs(cut, device)
    exact = tuple(each.detach().double().requires_grad_() for each in inputs)
    y, wanted = scan(inputs, offsets), scan_by_steps(exact, offsets)
    grad = torch.randn_like(wanted)
    pairs = [(y, wanted)]
    found = torch.autograd.grad(y, inputs, grad.to(y.dtype))
    pairs += zip(found, torch.autograd.grad(wanted, exact, grad.to(y.dtype).double()), strict=True)
    worst = max(difference(*pair) for pair in pairs)
    return {"cell": str(cut), "difference": worst, "near": worst <= NEAR[cell.dtype]}


MODEL = """
import json, sys, time, torch
provided = sys.argv[1] == "provided"
if provided:
    import scanops.compat
    assert scanops.compat.provide("mamba_ssm")
from transformers import MambaConfig, MambaForCausalLM
torch.manual_seed(0)
config = MambaConfig(vocab_size=1000, hidden_size=768, num_hidden_layers=4, state_size=16)
model = MambaForCausalLM(config).cuda()
tokens = torch.randint(0, 1000, (4, 512), device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def train():
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    return loss
def generate():
    with torch.no_grad():
        return model.generate(tokens[:, :64], max_new_tokens=32, do_sample=False, pad_token_id=0)
found = {}
for name, step, count in (("a training step", train, 5), ("32 tokens generated", generate, 2)):
    step(); torch.cuda.synchronize(); began = time.perf_counter()
    for _ in range(count): step()
    torch.cuda.synchronize(); found[name] = (time.perf_counter() - began) / count * 1e3
print(json.dumps(found))
"""


def time_model() -> list[Row]:
    """Return the times of a Mamba model of transformers with ``provide`` and with its own loop."""
    times = {}
    for word in ("provided", "loop"):
        times[word] = json.loads(child("-c", MODEL, word).splitlines()[-1])
    words = "4 layers of 768, batch 4, 512 tokens, float32"
    return [
        {"model": f"{name}: {words}", "provided_ms": times["provided"][name], "loop_ms": times["loop"][name]}
        for name in times["loop"]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cells, or with ``--small`` compare small ones. Return 1 where one is wrong."""
    words = parser(__doc__, filtered="cells")
    words.add_argument("--small", action="store_true", help="small tensors, compared with float64; no measurement")
    words.add_argument("--model", action="store_true", help="a Mamba model of transformers with and without provide")
    words.add_argument("--mamba", help="a checkout of mamba_ssm's sources, or its extension")
    told = words.parse_args(arguments)
    chosen = [each for each in cells(told.small) if told.filter in str(each)]
    if told.small:
        rows = [check(each, "cpu") for each in chosen]
        for row in rows:
            print(json.dumps(row), flush=True)
        return int(not all(row["near"] for row in rows))
    require_gpu()
    if told.model:
        for row in time_model():
            print(json.dumps(row), flush=True)
            append_line(told.output, row)
        return 0
    mamba = mamba_scan(load_mamba(told.mamba)) if told.mamba else None
    if mamba is None:
        print("mamba_ssm is missing: pass --mamba with a checkout of its sources", file=sys.stderr)
    timer = Timer(BUDGET)
    for each in chosen:
        row = measure(each, timer, mamba)
        print(json.dumps(row), flush=True)
        append_line(told.output, row)
        torch.cuda.empty_cache()
    return 0
