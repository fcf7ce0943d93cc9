"""Time published kernels beside the scans that replace them, in one process: forward alone, and with gradients.

Peers are fla's sums of chunks and of sequences and its ``chunk_hgrn``, both kernels of accelerated-scan, mamba_ssm's
``_chunk_cumsum_fwd``, cuda.compute and, under torch.compile, torch's associative scan. Results are compared with those
of scanops first. A peer that cannot be imported is named, with what installs it: ``pip install fla-core einops
accelerated-scan "cuda-cccl[minimal-cu13]"``. mamba_ssm needs no build: a folder with its sources on PYTHONPATH will do.
Prints the microseconds and a verdict for each peer; ``--output`` gets a line of JSON for each scan.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

import scanops
from benchmarks.common import Row, append_line, build_kernels_of, parser, require_gpu
from benchmarks.timing import Timer
from benchmarks.workloads import associative
from scanops import compat
from scanops.runtime.kernels import default_target

BUDGET = 0.08  # seconds of runs for each figure
TIE = 0.02  # of the time: a peer that is ahead by less is not
NEAR = {torch.float32: 2e-3, torch.bfloat16: 4e-2}  # of the greatest value
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Any]  # of the inputs: a tensor, or a tuple of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A scan with its inputs, and the functions that load each peer's."""

    name: str
    inputs: Tensors
    ours: Function
    peers: dict[str, Callable[[], Function]] = field(default_factory=dict)
    trains: bool = True


def load(module: str, function: str) -> Function:
    """Return a function of a peer."""
    found: Function = getattr(importlib.import_module(module), function)
    return found


def load_hgrn(name: str) -> Function:
    """Return one of fla's recurrences of logarithmic gates."""
    function = load("fla.ops.hgrn", name)
    return lambda gate, x: function(x, gate)[0]


def load_mamba() -> Function:
    """Return mamba_ssm's sums of chunks. The package itself is not run, as it imports an extension to be built."""
    if "mamba_ssm" not in sys.modules:
        spec = importlib.util.find_spec("mamba_ssm")
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("no folder mamba_ssm on PYTHONPATH")
        package = ModuleType("mamba_ssm")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["mamba_ssm"] = package
    return load("mamba_ssm.ops.triton.ssd_chunk_state", "_chunk_cumsum_fwd")


def load_cub() -> Function:
    """Return cuda.compute's inclusive sum of one line, with its temporary storage allocated once."""
    compute = importlib.import_module("cuda.compute")
    made: dict[torch.Size, tuple[Any, Any]] = {}

    def scan(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        given = {"op": compute.OpKind.PLUS, "init_value": None}
        if x.shape not in made:
            scanner = compute.make_inclusive_scan(d_in=x, d_out=y, **given)
            size = scanner(temp_storage=None, d_in=x, d_out=y, num_items=x.numel(), **given)
            made[x.shape] = scanner, torch.empty(size, dtype=torch.uint8, device=x.device)
        scanner, storage = made[x.shape]
        stream = torch.cuda.current_stream()
        scanner(temp_storage=storage, d_in=x, d_out=y, num_items=x.numel(), stream=stream, **given)
        return y

    return scan


@functools.cache
def compiled_associative(dim: int) -> Function:
    """Return torch's associative scan of a recurrence, compiled."""
    return torch.compile(partial(associative, dim=dim))


def exponential(gate: torch.Tensor, x: torch.Tensor) -> Tensors:
    """Gates from their logarithms."""
    return torch.exp(gate), x


def decay(x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """The logarithm of a state-space model's decay in one step."""
    return F.softplus(x.float() + bias) * a


def decay_and_step(y: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor) -> Tensors:
    """The running sum, and the step that it was made of."""
    return y, F.softplus(x.float() + bias)


def contests(device: str, small: bool = False) -> Iterator[Contest]:
    """Yield the scans; ``small`` cuts the dimensions."""
    random = torch.Generator(device).manual_seed(2026)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        cut = (min(size, 64) for size in shape) if small else shape
        return torch.randn(tuple(cut), device=device, generator=random).to(dtype)

    def title(words: str, x: torch.Tensor) -> str:
        return f"{words}, {' x '.join(map(str, x.shape))}, {str(x.dtype).removeprefix('torch.')}"

    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((8, 1536, 2048), (8, 1536, 16384)):
            gate, x = normal(*shape, dtype=dtype).sigmoid(), normal(*shape, dtype=dtype)
            yield Contest(
                name=title("recurrence in rows", x),
                inputs=(gate, x),
                ours=compat.scan,
                peers={
                    "accelerated-scan, warp": partial(load, "accelerated_scan.warp", "scan"),
                    "accelerated-scan, Triton": partial(load, "accelerated_scan.scalar", "scan"),
                },
            )
        for shape in ((8, 4096, 1024), (16, 2048, 128), (8, 4096, 2560)):
            gate, x = F.logsigmoid(normal(*shape)).to(dtype), normal(*shape, dtype=dtype)
            yield Contest(
                name=title("recurrence of logarithmic gates down columns", x),
                inputs=(gate, x),
                ours=lambda g, x: scanops.scan((g, x), "linear", 1, map=exponential),
                peers={name: partial(load_hgrn, name) for name in ("chunk_hgrn", "fused_recurrent_hgrn")},
            )
    gate, x = normal(8, 4096, 1024).sigmoid(), normal(8, 4096, 1024)
    yield Contest(
        name=title("recurrence down columns", x),
        inputs=(gate, x),
        ours=lambda g, x: scanops.linear_scan(g, x, 1),
        peers={"torch.compile, associative_scan": lambda: compiled_associative(1)},
        trains=False,  # torch's own differentiates no tuples of several tensors
    )
    offsets = torch.tensor([0, *range(40, 64, 8), 64] if small else [0, *range(800, 8192, 1170), 8192], device=device)
    sums: tuple[tuple[str, str, tuple[int, ...], dict[str, Any]], ...] = (
        ("sums of chunks of 64", "chunk_local_cumsum", (8, 8192, 32), {"chunk_size": 64}),
        ("sums of chunks of 64", "chunk_local_cumsum", (8, 4096, 8, 128), {"chunk_size": 64}),
        ("sums of sequences", "chunk_global_cumsum", (8, 8192, 32), {}),
        ("sums of sequences", "chunk_global_cumsum", (8, 4096, 8, 128), {}),
        ("sums of packed sequences", "chunk_global_cumsum", (1, 8192, 32), {"cu_seqlens": offsets}),
    )
    for words, function, sizes, options in sums:
        x = normal(*sizes)
        yield Contest(
            name=title(words, x),
            inputs=(x,),
            ours=partial(getattr(compat, function), **options),
            peers={
                f"fla, {function}": lambda function=function, options=options: partial(  # type: ignore[misc]
                    load("fla.ops.utils", function), **options
                )
            },
            trains=False,  # fla's have no gradients of their own
        )
    for dtype in (torch.float32, torch.bfloat16):
        for batch, length, heads in ((1, 4096, 48), (8, 2048, 64), (8, 4096, 80), (2, 32768, 80)):
            x, a, bias = normal(batch, length, heads, dtype=dtype), -normal(heads).exp(), normal(heads)
            chunk = min(256, x.shape[1])

            def chunks(x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor, chunk: int = chunk) -> Any:
                given = (x.view(-1, chunk, x.shape[-1]), bias, a)
                return scanops.scan(given, "sum", 1, map=decay, then=decay_and_step)

            def theirs(function: Function, x: Any, bias: Any, a: Any, chunk: int = chunk) -> Tensors:
                found = function(x, a, chunk, dt_bias=bias, dt_softplus=True)
                return tuple(each.permute(0, 2, 3, 1) for each in found)  # from batch, head, chunk, item

            yield Contest(
                name=title("decays and steps in chunks", x),
                inputs=(x, bias, a),
                ours=chunks,
                peers={"mamba_ssm, _chunk_cumsum_fwd": partial(_bind, load_mamba, theirs)},
                trains=False,
            )
    for items in (2**20, 2**28):
        x = normal(items)
        yield Contest(
            name=title("sum of one line", x),
            inputs=(x,),
            ours=lambda x: scanops.cumsum(x, 0),
            peers={"cuda.compute": load_cub},
            trains=False,
        )


def _bind(load_peer: Callable[[], Function], function: Function) -> Function:
    return partial(function, load_peer())


def run(function: Function, inputs: Tensors, given: Tensors = ()) -> Tensors:
    """Return the results of a function; with ``given``, the gradients of the results, those of the inputs."""
    found = function(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    return torch.autograd.grad(found, inputs, given) if given else found


def difference(found: Tensors, expected: Tensors) -> float:
    """Return the greatest difference of two results, over the greatest value."""
    pairs = zip(found, expected, strict=True)
    return max(
        float((a.reshape(b.shape).float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-30))
        for a, b in pairs
    )


def measure(each: Contest, timer: Timer | None) -> Row:
    """Return microseconds of scanops and of each peer, and why a peer has none."""
    row: Row = {"scan": each.name, "us": {}, "missing": {}}
    functions = {"scanops": each.ours}
    for name, make in each.peers.items():
        try:
            functions[name] = make()
        except Exception as problem:  # it is not installed, or does not build here
            row["missing"][name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
    for way in ("forward", "with gradients") if each.trains else ("forward",):
        trains = way == "with gradients"
        inputs = tuple(tensor.detach().requires_grad_(trains) for tensor in each.inputs)
        expected = run(each.ours, inputs)
        given = tuple(torch.randn_like(result) for result in expected) if trains else ()
        expected = run(each.ours, inputs, given)
        near, runs = NEAR[each.inputs[0].dtype], {"scanops": partial(run, each.ours, inputs, given)}
        for name, function in functions.items():
            try:
                off = difference(run(function, inputs, given), expected)
            except Exception as problem:  # it refuses these tensors or this GPU, which is a result
                row["missing"][f"{name}, {way}"] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
                continue
            if off <= near:
                runs[name] = partial(run, function, inputs, given)
            else:
                row["missing"][f"{name}, {way}"] = f"its results are {off:.2g} off"
        if timer is not None:
            moved = sum(tensor.nbytes for tensor in (*inputs, *expected))
            times = timer.samples(runs, moved)
            row["us"][way] = {name: round(1e3 * sample.ms, 2) for name, sample in times.items()}
    return row


def is_behind(us: dict[str, float]) -> bool:
    """Whether a peer takes less time than scanops, by more than a tie."""
    return min(us.values()) < us["scanops"] * (1 - TIE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every scan; return 1 where a peer is ahead."""
    options = parser(__doc__, filtered="scans")
    options.add_argument("--small", action="store_true", help="compare results on small tensors, and time nothing")
    given = options.parse_args(arguments)
    if not given.small:
        require_gpu()
    device, behind = "cpu" if given.small else "cuda", 0
    for each in contests(device, given.small):
        if given.filter not in each.name:
            continue
        if not given.small:
            build_kernels_of([partial(run, each.ours, each.inputs)], default_target())
        row = measure(each, None if given.small else Timer(BUDGET))
        for way, us in row["us"].items():
            behind += is_behind(us)
            words = "  ".join(f"{name} {time:.1f} ({time / us['scanops']:.2f})" for name, time in us.items())
            print(f"{'BEHIND  ' * is_behind(us)}{each.name}, {way}: {words}", flush=True)
        for name, reason in row["missing"].items():
            print(f"   {each.name}: {name} is missing: {reason}", flush=True)
        append_line(given.output, row)
    print(f"a peer is ahead in {behind} cases")
    return min(1, behind)
