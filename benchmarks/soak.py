"""The same bits, ten thousand times, beside a kernel that keeps the GPU busy: python benchmarks/soak.py [-o FILE].

Each case is one whose lines are split over blocks, so that blocks wait for one another. A second stream runs matrix
products without a pause, which take and give back multiprocessors at times of their own. Every result is compared
with the first on the GPU; nothing waits for the host within a batch. A batch that does not end is a hang.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

import scanops
from scanops.bench.cells import Cell
from scanops.bench.check import is_right
from scanops.bench.run import require_gpu
from scanops.bench.tensors import Case, allocate, poison
from scanops.codegen.spec import ScanSpec
from scanops.errors import ScanopsError
from scanops.fallback import scans
from scanops.requests.call import Call
from scanops.requests.request import Inputs, make_request
from scanops.runtime.kernels import compile as compile_kernel
from scanops.runtime.kernels import default_target

# variant, + what it has beside that (segments by flags; what lines go on from, and what goes on; a gate), shape, dim:
# few long rows, few and many columns, what divides nothing, each of a size that takes some 30 us
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
BATCH = 100  # repeats between two looks at the clock
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Busy:
    """Matrix products on a stream of their own, a few always queued."""

    QUEUED = 3

    def __init__(self, size: int) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._a = torch.randn(size, size, device="cuda")
        self._out = torch.empty_like(self._a)
        self._events: list[torch.cuda.Event] = []
        self.launched = 0
        torch.cuda.synchronize()

    def top_up(self) -> None:
        """Queue as many as have ended."""
        self._events = [event for event in self._events if not event.query()]  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            while len(self._events) < self.QUEUED:
                torch.mm(self._a, self._a, out=self._out)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
                self._events.append(event)
                self.launched += 1


class Subject:
    """A case with what it has beside its variant."""

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
        """Whether what goes on from each line is wanted."""
        return self.extra == "carry"

    def run(self, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results, the first of them in ``y``."""
        given = self.inputs
        named = {"mask": given.mask, "segment_starts": given.starts, "initial": given.initial}
        options: dict[str, Any] = {**named, "return_final": self.final, "out": y, **self.flags}
        if given.gate is not None:
            found: Any = scanops.linear_scan(given.gate, given.x, self.case.cell.dim, **options)
        else:
            found = scanops.scan(given.x, self.op, self.case.cell.dim, **options)
        return found if self.final else (found,)

    def is_right(self, results: tuple[torch.Tensor, ...]) -> bool:
        """Whether they are those of the same scan in float64, to within what rounding explains."""
        if not self.extra:
            return is_right(self.case, results[0])
        doubled = [each.double() if each is not None and each.is_floating_point() else each for each in self.inputs]
        call = Call(self.op, self.case.cell.dim, final=self.final, dtype=torch.float64, **self.flags)
        wanted = scans.outputs(Inputs(*doubled), call)  # type: ignore[arg-type]
        pairs = zip(results, wanted, strict=True)
        return all(bool((y - exact).abs().max() <= 1e-5 * exact.abs().max()) for y, exact in pairs)

    def spec(self, multiprocessors: int) -> ScanSpec:
        """Of the kernel that serves it."""
        given = self.inputs
        request = make_request(
            given.x, self.op, self.case.cell.dim, mask=given.mask, gate=given.gate, starts=given.starts,
            initial=given.initial, final=self.final, out=self.case.y, **self.flags,
        )  # fmt: skip
        return request.spec(self.case.y, multiprocessors)


def soak(subject: Subject, repeats: int, busy: Busy, alive: Callable[[], None]) -> dict[str, object]:
    """Repeat a case beside the busy stream and count the results that differ from the first."""
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
    """Ends the process, with a word, when nothing has been heard for too long: a hung kernel cannot be stopped."""

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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the counts here as JSON")
    parser.add_argument("--repeats", type=int, default=10_000, help="of each case")
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--busy-size", type=int, default=4096, help="rows of the matrices of the busy stream")
    parser.add_argument("--hang-seconds", type=float, default=60, help="without an answer, after which it is a hang")
    arguments = parser.parse_args()
    try:
        require_gpu()
    except ScanopsError as problem:
        print(problem, file=sys.stderr)
        return 1
    target, multiprocessors = default_target(), torch.cuda.get_device_properties().multi_processor_count
    rows: list[dict[str, object]] = []
    busy, watch = Busy(arguments.busy_size), Watch(arguments.hang_seconds)
    for named, shape, dim in CASES:
        variant, _, extra = named.partition("+")
        cell = Cell(group="soak", family="split over blocks", variant=variant, shape=shape, dim=dim)
        name = f"{cell.name} {extra}".strip()
        if arguments.filter not in name:
            continue
        watch.case = name
        subject = Subject(allocate(cell), extra)
        spec = subject.spec(multiprocessors)
        plan = compile_kernel(spec, target).plan
        watch.alive()
        row: dict[str, object] = {"case": name, "spec": spec.slug, "strategy": plan.strategy}
        row |= soak(subject, arguments.repeats, busy, watch.alive)
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    bad = [row["case"] for row in rows if row["mismatches"] or not row["right"]]
    repeats = sum(int(str(row["repeats"])) for row in rows)
    print(f"{len(rows)} cases, {repeats} repeats, {len(bad)} with other bits or wrong {bad}, no hang")
    if arguments.output:
        document = {
            "device": torch.cuda.get_device_name(),
            "date": date.today().isoformat(),
            "versions": {"torch": torch.__version__, "scanops": scanops.__version__},
            "cases": rows,
        }
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
