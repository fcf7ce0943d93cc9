"""The five scans the project began with: each generated, built, run and checked, on the GPU or emulated.

On a GPU they run at full size and are timed against a copy. Without one the same templates run at small and odd sizes
through the emulator, and with nvcc the full-size kernels are built too, for what the compiler says of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from scanops.artifact import Resources
from scanops.builders.toolchain import find_cxx, find_nvcc
from scanops.codegen.spec import ScanSpec
from scanops.emulation import emulate
from scanops.errors import BuildFailure
from scanops.fallback.accuracy import limit, max_error
from scanops.requests.request import make_request
from scanops.runtime.kernels import Kernel, default_target, is_built
from scanops.runtime.kernels import compile as compile_kernel

__all__ = ["SCANS", "Check", "Scan", "Step", "Timing", "device_name", "shape_text", "steps"]

Shape = tuple[int, ...]

KEPT = 0.7  # of the items a mask keeps
NOISE = 0.01  # around 1 in the input of a product: over 32768 factors the result stays between e-13 and e+9 or so
WARM_UPS, REPEATS = 3, 20
CHECKED_ITEMS = 2**25  # at a time: in float64, with what is made on the way, 2 GB
MEMORY_SHARE = 0.8  # of the free memory of a GPU the tensors may take
TARGETS = ("sm_80", "sm_90")  # whose registers are shown where there is no GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One of the five."""

    title: str
    call: str  # as one writes it
    op: str
    dim: int  # from 0
    full: Shape  # on a GPU: 4 GiB, far more than any L2
    small: tuple[Shape, ...]  # emulated: one that fills its tile badly, one that takes several steps
    masked: bool = False
    reverse: bool = False
    exclusive: bool = False

    @property
    def spec(self) -> ScanSpec:
        """Of the full size."""
        return ScanSpec(
            op=self.op,
            dtype="float32",
            length=self.full[self.dim],
            inner=math.prod(self.full[self.dim + 1 :]),
            mask="bool" if self.masked else None,
            reverse=self.reverse,
            exclusive=self.exclusive,
        )

    @property
    def lines_dim(self) -> int:
        """A dimension across the lines: slices along it hold whole lines."""
        return 0 if self.dim != 0 else 1


ROWS: Shape = (32768, 32768)

SCANS: tuple[Scan, ...] = (
    Scan(
        title="cumulative product along the last dimension",
        call="scanops.cumprod(x, -1)",
        op="prod",
        dim=1,
        full=ROWS,
        small=((8, 1000), (3, 4097)),
    ),
    Scan(
        title="cumulative product along the first dimension",
        call="scanops.cumprod(x, 0)",
        op="prod",
        dim=0,
        full=ROWS,
        small=((100, 8, 64), (1025, 2, 37)),
    ),
    Scan(
        title="reverse cumulative sum",
        call="scanops.cumsum(x, -1, reverse=True)",
        op="sum",
        dim=1,
        full=ROWS,
        small=((67, 31), (2, 40000)),
        reverse=True,
    ),
    Scan(
        title="masked cumulative sum, NaN under the mask",
        call="scanops.cumsum(x, -1, mask=keep)",
        op="sum",
        dim=1,
        full=ROWS,
        small=((8, 1000), (3, 12347)),
        masked=True,
    ),
    Scan(
        title="exclusive sum, NaN in the last item",
        call="scanops.cumsum(x, -1, exclusive=True)",
        op="sum",
        dim=1,
        full=ROWS,
        small=((8, 1023), (1, 70001)),
        exclusive=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Medians over REPEATS runs, by CUDA events."""

    milliseconds: float  # of the scan
    copy_milliseconds: float  # of a device-to-device copy of as many bytes, measured in the same run

    @property
    def copy_fraction(self) -> float:
        """1 is the speed of a copy."""
        return self.copy_milliseconds / self.milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One scan at one shape."""

    scan: Scan
    shape: Shape
    kernel: Kernel
    found: bool  # in the store before this run
    max_error: float  # relative to the running sum or product of magnitudes; see scanops.fallback.accuracy
    limit: float  # what it may be
    timing: Timing | None  # on a GPU
    compiled: dict[str, Kernel]  # target -> the full-size kernel, as far as a compiler for it is here

    @property
    def ok(self) -> bool:
        return self.max_error <= self.limit  # False for NaN

    @property
    def resources(self) -> dict[str, Resources]:
        """What the compiler says of the full-size kernel, by target."""
        return {target: kernel.resources for target, kernel in self.compiled.items() if kernel.resources}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One check to make."""

    scan: Scan
    shape: Shape

    def run(self) -> Check:
        """Build what is not built, run, compare; on a GPU also measure. Raises what scans and builds raise."""
        if torch.cuda.is_available():
            multiprocessors = torch.cuda.get_device_properties().multi_processor_count
            return _check(self.scan, self.shape, torch.device("cuda"), multiprocessors)
        compiled = _compiled(self.scan)
        with emulate() as emulation:
            check = _check(self.scan, self.shape, torch.device("cpu"), emulation.multiprocessors)
        return replace(check, compiled=compiled)


def device_name() -> str:
    """Where the demonstration runs. Raises BuildFailure when there is neither a GPU nor a compiler to emulate with."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"no GPU: emulated on the CPU, built by {find_cxx().version}"


def steps() -> tuple[Step, ...]:
    """What there is to do, in order."""
    if torch.cuda.is_available():
        return tuple(Step(scan=scan, shape=_that_fits(scan)) for scan in SCANS)
    return tuple(Step(scan=scan, shape=shape) for scan in SCANS for shape in scan.small)


def shape_text(shape: Shape) -> str:
    """As people write it: 8 x 1000."""
    return " x ".join(map(str, shape))


def _compiled(scan: Scan) -> dict[str, Kernel]:
    """The full-size kernels, built and not run; none without nvcc."""
    try:
        known = find_nvcc().targets
    except BuildFailure:
        return {}
    return {target: compile_kernel(scan.spec, target) for target in TARGETS if target in known}


def _that_fits(scan: Scan) -> Shape:
    """The full shape, with fewer lines where the GPU's memory is small."""
    shape, free = scan.full, torch.cuda.mem_get_info()[0] * MEMORY_SHARE - 64 * CHECKED_ITEMS
    cut = scan.lines_dim
    while shape[cut] > 1 and math.prod(shape) * 9 > free:
        shape = (*shape[:cut], shape[cut] // 2, *shape[cut + 1 :])
    return shape


def _check(scan: Scan, shape: Shape, device: torch.device, multiprocessors: int) -> Check:
    x, mask = _inputs(scan, shape, device)
    out = torch.empty_like(x)
    request = make_request(
        x, scan.op, scan.dim, mask=mask, reverse=scan.reverse, exclusive=scan.exclusive, dtype=None, out=None
    )
    spec, target = request.spec(out, multiprocessors), default_target()
    found = is_built(spec, target)
    kernel = compile_kernel(spec, target)
    out.fill_(math.nan)  # what the kernel does not write shows
    kernel(x, scan.dim, mask=mask, out=out)
    error = max(
        max_error(y, items, scan.op, scan.dim, mask=keep, reverse=scan.reverse, exclusive=scan.exclusive)
        for y, items, keep in _parts(out, x, mask, scan.lines_dim)
    )
    timing = _timing(kernel, scan, x, mask, out) if device.type == "cuda" else None
    compiled = {target: kernel} if device.type == "cuda" else {}
    return Check(
        scan=scan,
        shape=shape,
        kernel=kernel,
        found=found,
        max_error=error,
        limit=limit(scan.op, shape[scan.dim]),
        timing=timing,
        compiled=compiled,
    )


def _inputs(scan: Scan, shape: Shape, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x and mask, with a NaN wherever the scan must not look."""
    random = torch.Generator(device).manual_seed(2026)
    x = torch.randn(shape, generator=random, device=device)
    if scan.op == "prod":
        x.mul_(NOISE).add_(1.0)
    if scan.exclusive:
        x.select(scan.dim, 0 if scan.reverse else -1).fill_(math.nan)
    if not scan.masked:
        return x, None
    mask = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(KEPT, generator=random)
    return x.masked_fill_(~mask, math.nan), mask


def _parts(
    out: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | None, dim: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """The tensors in slices of whole lines, so that float64 fits in memory."""
    size = x.shape[dim]
    step = max(1, CHECKED_ITEMS * size // x.numel())
    for first in range(0, size, step):
        part = (dim, first, min(step, size - first))
        yield out.narrow(*part), x.narrow(*part), None if mask is None else mask.narrow(*part)


def _timing(kernel: Kernel, scan: Scan, x: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor) -> Timing:
    copy = _median_milliseconds(lambda: out.copy_(x))
    # The mask is one byte more than the eight that a copy moves for an item.
    as_many_bytes = copy * 9 / 8 if scan.masked else copy
    return Timing(
        milliseconds=_median_milliseconds(lambda: kernel(x, scan.dim, mask=mask, out=out)),
        copy_milliseconds=as_many_bytes,
    )


def _median_milliseconds(run: Callable[[], object]) -> float:
    for _ in range(WARM_UPS):
        run()
    events = [(_event(), _event()) for _ in range(REPEATS)]
    for started, ended in events:
        started.record()
        run()
        ended.record()
    torch.cuda.synchronize()
    return float(statistics.median(started.elapsed_time(ended) for started, ended in events))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
