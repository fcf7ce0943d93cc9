"""Repeat look-back kernels ten thousand times beside a busy GPU: the same bits every time, and no hang.

Lines of each case are split over blocks, so that blocks wait for one another. A second stream runs matrix products
without a pause, which occupy and free multiprocessors at unrelated times. Every result is compared with the first on
the GPU, without host synchronisation within a batch. A batch that does not end is a hang.

``--calls 10000`` needs no GPU: it makes random calls with odd tensors, each of which must give the right answer or a
typed error.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import scanops
from benchmarks.cells import Case, Cell, allocate, poison
from benchmarks.common import kernel_of, parser, require_gpu, write
from benchmarks.measure import is_right
from scanops.codegen.lines import are_few
from scanops.codegen.spec import ScanSpec
from scanops.fallback import scans
from scanops.requests.call import Call
from scanops.requests.request import Inputs, make_request
from scanops.runtime.kernels import default_target

# (variant[+segments|+carry|+linear], shape, dim): few long rows, few and many columns, lengths that no tile divides;
# each of a size that takes some 30 us
CASES: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("sum", (1, 2**20), 1),
    ("sum", (8, 2**20), 1),
    ("sum", (3, 1000003), 1),
    ("prod_masked_reverse_exclusive", (5, 2**20 + 1), 1),
    ("sum_bf16", (4, 2**21), 1),
    ("sum_f64", (2, 2**20), 1),
    ("sum", (1, 65536, 64), 1),
    ("sum", (1, 262144, 64), 1),
    ("sum", (4, 32768, 32), 1),
    ("sum", (1, 100003, 33), 1),
    ("prod_masked_reverse_exclusive", (1, 32768, 128), 1),
    ("sum", (64, 9000, 7), 1),
    ("sum+segments", (3, 1000003), 1),
    ("sum+segments", (8, 2**20), 1),
    ("sum+segments", (1, 65536, 64), 1),
    ("sum+carry", (1, 2**20), 1),
    ("reverse+carry", (5, 2**20 + 1), 1),
    ("exclusive+carry", (1, 100003, 33), 1),
    ("sum+linear", (2, 2**20), 1),
    ("reverse+linear", (8, 2**20), 1),
    ("sum+linear", (1, 65536, 64), 1),
    ("exclusive+linear", (64, 9000, 7), 1),
)
BATCH = 100  # repeats between two synchronisations
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Busy:
    """Matrix products on a second stream, a few of which are always queued."""

    QUEUED = 3

    def __init__(self, size: int) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._a = torch.randn(size, size, device="cuda")
        self._out = torch.empty_like(self._a)
        self._events: list[torch.cuda.Event] = []
        self.launched = 0
        torch.cuda.synchronize()

    def top_up(self) -> None:
        """Queue as many products as have ended."""
        self._events = [event for event in self._events if not event.query()]  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            while len(self._events) < self.QUEUED:
                torch.mm(self._a, self._a, out=self._out)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
                self._events.append(event)
                self.launched += 1


class Subject:
    """A case with the operands that its name adds to the variant."""

    def __init__(self, case: Case, extra: str) -> None:
        self.case, self.extra = case, extra
        what, x = case.cell.what, case.x
        random = torch.Generator(x.device).manual_seed(7)
        self.op = "linear" if extra == "linear" else what.op
        starts = gate = initial = None
        if extra == "segments":
            starts = torch.rand(x.shape, device=x.device, generator=random) < 1e-3
        if extra == "linear":
            gate = 1 - 0.1 * torch.rand(x.shape, device=x.device, generator=random)
        if extra == "carry":
            lines = [size for d, size in enumerate(x.shape) if d != case.cell.dim]
            initial = torch.randn(lines, device=x.device, generator=random)
        self.inputs = Inputs(x=x, mask=case.mask, gate=gate, starts=starts, initial=initial)
        self.flags: dict[str, Any] = {"reverse": what.reverse, "exclusive": what.exclusive}

    @property
    def final(self) -> bool:
        """Whether the carry-out of each line is an output."""
        return self.extra == "carry"

    def run(self, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the scan and return its outputs, the first of them in ``y``."""
        given = self.inputs
        named = {"mask": given.mask, "segment_starts": given.starts, "initial": given.initial}
        options: dict[str, Any] = {**named, "return_final": self.final, "out": y, **self.flags}
        if given.gate is not None:
            found: Any = scanops.linear_scan(given.gate, given.x, self.case.cell.dim, **options)
        else:
            found = scanops.scan(given.x, self.op, self.case.cell.dim, **options)
        return found if self.final else (found,)

    def is_right(self, results: tuple[torch.Tensor, ...]) -> bool:
        """Whether the outputs equal the same scan in float64 to within rounding."""
        if not self.extra:
            return is_right(self.case, results[0])
        doubled = [each.double() if each is not None and each.is_floating_point() else each for each in self.inputs]
        call = Call(self.op, self.case.cell.dim, final=self.final, dtype=torch.float64, **self.flags)
        wanted = scans.outputs(Inputs(*doubled), call)  # type: ignore[arg-type]
        pairs = zip(results, wanted, strict=True)
        return all(bool((y - exact).abs().max() <= 1e-5 * exact.abs().max()) for y, exact in pairs)

    def spec(self, multiprocessors: int) -> tuple[ScanSpec, bool]:
        """Return the spec of the kernel that serves the case, and whether its lines are few."""
        given = self.inputs
        request = make_request(
            given.x, self.op, self.case.cell.dim, mask=given.mask, gate=given.gate, starts=given.starts,
            initial=given.initial, final=self.final, out=self.case.y, **self.flags,
        )  # fmt: skip
        spec = request.spec(self.case.y, multiprocessors)
        return spec, are_few(spec, request.line_shape.numel(), multiprocessors)


def soak(subject: Subject, repeats: int, busy: Busy, alive: Callable[[], None]) -> dict[str, object]:
    """Repeat a case beside the busy stream and count the results whose bits differ from the first."""
    y = subject.case.y
    first = subject.run(poison(torch.empty_like(y)))
    torch.cuda.synchronize()
    right = subject.is_right(first)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    launched, began = busy.launched, time.perf_counter()
    for done in range(repeats):
        if done % 10 == 0:
            busy.top_up()
        poison(y, 1)
        for result, wanted in zip(subject.run(y), first, strict=True):
            bits = _BITS[result.element_size()]
            differing += (result.view(bits) != wanted.view(bits)).any()
        if done % BATCH == BATCH - 1:
            torch.cuda.current_stream().synchronize()
            alive()
    mismatches = int(differing)
    alive()
    return {
        "repeats": repeats,
        "mismatches": mismatches,
        "right": right,
        "busy_kernels": busy.launched - launched,
        "seconds": round(time.perf_counter() - began, 2),
    }


class Watch:
    """Ends the process with a message when no batch has ended for too long: a hung kernel cannot be stopped."""

    def __init__(self, seconds: float) -> None:
        self.case, self._heard, self._seconds = "", time.monotonic(), seconds
        threading.Thread(target=self._look, daemon=True).start()

    def alive(self) -> None:
        self._heard = time.monotonic()

    def _look(self) -> None:
        while time.monotonic() - self._heard < self._seconds:
            time.sleep(0.5)
        print(f"HANG: nothing from {self.case} for {self._seconds:.0f} s", file=sys.stderr, flush=True)
        os._exit(3)


def random_calls(count: int, seed: int) -> int:
    """Make random calls with odd arguments, half of those emulated; return 1 for a wrong answer or a raw error."""
    from benchmarks.odd_calls import run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the dtypes and layouts that are tried here
        outcome = run(count, seed, emulated=True)
    print(*outcome.raw, *outcome.wrong, outcome.summary(), sep="\n")
    return 1 if outcome.raw or outcome.wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak every case and return 1 where bits differ or a result is wrong."""
    options = parser(__doc__, filtered="cases")
    options.add_argument("--repeats", type=int, default=10_000, help="of each case")
    options.add_argument("--busy-size", type=int, default=4096, help="rows of the matrices of the busy stream")
    options.add_argument("--hang-seconds", type=float, default=60, help="without an answer, after which it is a hang")
    options.add_argument("--calls", type=int, default=0, help="instead: random calls with odd tensors, on a CPU")
    options.add_argument("--seed", type=int, default=0, help="of the random calls")
    given = options.parse_args(arguments)
    if given.calls:
        return random_calls(given.calls, given.seed)
    require_gpu()
    target, multiprocessors = default_target(), torch.cuda.get_device_properties().multi_processor_count
    rows: list[dict[str, object]] = []
    busy, watch = Busy(given.busy_size), Watch(given.hang_seconds)
    for named, shape, dim in CASES:
        variant, _, extra = named.partition("+")
        cell = Cell(group="soak", family="split over blocks", variant=variant, shape=shape, dim=dim)
        name = f"{cell.name} {extra}".strip()
        if given.filter not in name:
            continue
        watch.case = name
        subject = Subject(allocate(cell), extra)
        spec, few = subject.spec(multiprocessors)
        plan = kernel_of((spec, few), target).plan
        watch.alive()
        row: dict[str, object] = {"case": name, "spec": spec.slug, "strategy": plan.strategy}
        row |= soak(subject, given.repeats, busy, watch.alive)
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    bad = [row["case"] for row in rows if row["mismatches"] or not row["right"]]
    repeats = sum(int(str(row["repeats"])) for row in rows)
    print(f"{len(rows)} cases, {repeats} repeats, {len(bad)} with other bits or wrong {bad}, no hang")
    write(given.output, {"cases": rows})
    return 1 if bad else 0
