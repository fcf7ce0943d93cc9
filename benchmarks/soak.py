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
from dataclasses import replace
from typing import Any

import torch

from benchmarks.cells import Case, Cell, allocate
from benchmarks.common import Row, kernel_of, parser, write
from benchmarks.scans import other_bits, poison
from scanops.measure import require_gpu

# (variant[+segments|+carry|+another operator], shape, dim): few long rows, few and many columns, lengths that no tile
# divides; each of a size that takes some 30 us
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
    ("sum+logcumsumexp", (2, 2**20), 1),
    ("sum+logcumsumexp", (8, 2**20), 1),
    ("reverse+logcumsumexp", (1, 65536, 64), 1),
    ("sum+cummax", (2, 2**20), 1),
    ("reverse+cummax", (8, 2**20), 1),
    ("sum+cummax", (1, 65536, 64), 1),
)
BATCH = 100  # repeats between two synchronisations


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


def case_of(named: str, shape: tuple[int, ...], dim: int, device: str = "cuda", *, filled: bool = True) -> Case:
    """Return the case of a row of CASES: a cell of its variant, with the operands that its name adds."""
    variant, _, extra = named.partition("+")
    case = allocate(
        Cell(group="soak", family="split over blocks", variant=variant, shape=shape, dim=dim), device, filled=filled
    )
    added: dict[str, Any] = {}
    if extra == "segments":
        added["starts"] = torch.rand_like(case.x) < 1e-3
    if extra == "linear":
        added["gate"] = 1 - 0.1 * torch.rand_like(case.x)
    if extra == "carry":
        added["initial"] = torch.randn_like(case.x.select(dim, 0))
    op = case.call.op if extra in ("", "segments", "carry") else extra
    call = replace(case.call, op=op, final=extra == "carry")
    return replace(case, name=f"{case.name} {extra}".strip(), call=call, inputs=case.inputs._replace(**added))


def soak(case: Case, repeats: int, busy: Busy, alive: Callable[[], None]) -> Row:
    """Repeat a case beside the busy stream and count the results whose bits differ from the first."""
    first = case.run(poison(torch.empty_like(case.y)))
    torch.cuda.synchronize()
    right = case.is_right(first)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    launched, began = busy.launched, time.perf_counter()
    for done in range(repeats):
        if done % 10 == 0:
            busy.top_up()
        for result, wanted in zip(case.run(poison(case.y, 1)), first, strict=True):
            differing += other_bits(result, wanted)
        if done % BATCH == BATCH - 1:
            torch.cuda.current_stream().synchronize()
            alive()
    mismatches = int(differing)
    alive()
    return {
        **{"repeats": repeats, "mismatches": mismatches, "right": right},
        **{"busy_kernels": busy.launched - launched, "seconds": round(time.perf_counter() - began, 2)},
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
    target, _, multiprocessors = require_gpu()
    rows: list[Row] = []
    busy, watch = Busy(given.busy_size), Watch(given.hang_seconds)
    for named, shape, dim in CASES:
        case = case_of(named, shape, dim)
        if given.filter not in case.name:
            continue
        watch.case = case.name
        key = case.key(target, multiprocessors)
        strategy = kernel_of(key).plan.strategy
        watch.alive()
        rows.append({"case": case.name, "spec": key.spec.slug, "strategy": strategy})
        rows[-1] |= soak(case, given.repeats, busy, watch.alive)
        print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    bad = [row["case"] for row in rows if row["mismatches"] or not row["right"]]
    repeats = sum(row["repeats"] for row in rows)
    print(f"{len(rows)} cases, {repeats} repeats, {len(bad)} with other bits or wrong {bad}, no hang")
    write(given.output, {"cases": rows})
    return 1 if bad else 0
