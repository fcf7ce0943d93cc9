"""Measure the error of scanops and of torch against float64 on the same data; write docs/accuracy.md.

Writes benchmarks/results/accuracy.json as well. Without a GPU the kernels are emulated and compared with torch's CPU
code, which accumulates float32 in double; only figures of a GPU are comparable.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import scanops
from benchmarks.common import ROOT, require_gpu, surroundings

JSON, PAGE = ROOT / "benchmarks" / "results" / "accuracy.json", ROOT / "docs" / "accuracy.md"
LINES = {"cuda": 32, "cpu": 2}  # several draws, of which the worst counts
TIE = 1.001  # rounding to half precision depends on the last bit of a float
Draw = Callable[[int, int], torch.Tensor]  # lines, length


def _great_then_small(lines: int, length: int) -> torch.Tensor:
    x = torch.rand(lines, length)
    x[:, 0] = 1e8
    return x


def _near_one(spread: float) -> Draw:
    return lambda lines, length: 1 + spread * torch.randn(lines, length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One operator, dtype and distribution of the data to scan."""

    name: str
    op: str
    dtype: torch.dtype
    length: int
    draw: Draw


DATA = (
    Data(name="randn", op="sum", dtype=torch.float32, length=1_000_000, draw=torch.randn),
    Data(name="randn", op="sum", dtype=torch.float16, length=500_000, draw=torch.randn),
    Data(name="randn", op="sum", dtype=torch.bfloat16, length=500_000, draw=torch.randn),
    Data(name="ones, beyond 256", op="sum", dtype=torch.bfloat16, length=4096, draw=torch.ones),
    Data(name="1e8, then rand", op="sum", dtype=torch.float32, length=100_000, draw=_great_then_small),
    Data(name="1 + 1e-3 randn", op="prod", dtype=torch.float32, length=100_000, draw=_near_one(1e-3)),
    Data(name="1 + 1e-2 randn", op="prod", dtype=torch.float16, length=5000, draw=_near_one(1e-2)),
    Data(
        name="1000 randn",
        op="logcumsumexp",
        dtype=torch.float32,
        length=40_000,
        draw=lambda lines, length: 1e3 * torch.randn(lines, length),
    ),
    Data(
        name="1000 randn",
        op="logcumsumexp",
        dtype=torch.bfloat16,
        length=40_000,
        draw=lambda lines, length: 1e3 * torch.randn(lines, length),
    ),
    Data(name="randn", op="logcumsumexp", dtype=torch.float32, length=40_000, draw=torch.randn),
)
TORCHS = {"sum": torch.cumsum, "prod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Errors of a result relative to the scan in float64."""

    max: float
    mean: float
    max_ulp: float  # in units of the exact result's last place, in the output's dtype
    mean_ulp: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: errors of scanops and of torch."""

    op: str
    data: str
    dtype: str
    along: str  # rows or columns
    length: int
    lines: int
    ours: Error
    torchs: Error

    @property
    def above(self) -> list[str]:
        """The measures in which scanops is above torch; ulps are left out, since cancelling sums dominate them."""
        ours, theirs = asdict(self.ours), asdict(self.torchs)
        return [name for name in ("max", "mean") if ours[name] > TIE * theirs[name]]


def error(y: torch.Tensor, exact: torch.Tensor) -> Error:
    """Return the error where the exact result is finite; a result that is not finite there is infinitely wrong."""
    finfo = torch.finfo(y.dtype)
    legal = exact.isfinite() & (exact.abs() <= finfo.max)
    exact, wide = exact[legal], y.double()[legal]
    off = (wide - exact).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    place = torch.ldexp(torch.ones_like(exact), torch.frexp(exact.abs().clamp(min=finfo.tiny)).exponent - 1) * finfo.eps
    ulps = off / place
    return Error(max=float(off.max()), mean=float(off.mean()), max_ulp=float(ulps.max()), mean_ulp=float(ulps.mean()))


def measure(data: Data, along: str, device: str) -> Row:
    """Scan the same data with scanops and torch, along rows or columns."""
    torch.manual_seed(20)
    lines = LINES[device]
    x = data.draw(lines, data.length).to(data.dtype)
    dim = 1 if along == "rows" else 0
    x = (x if dim else x.t().contiguous()).to(device)
    function = TORCHS[data.op]
    exact = function(x.double(), dim)
    with scanops.emulate() if device == "cpu" else nullcontext():
        ours = error(scanops.scan(x, data.op, dim), exact)
    theirs = error(function(x, dim), exact)
    return Row(
        op=data.op,
        data=data.name,
        dtype=str(data.dtype).removeprefix("torch."),
        along=along,
        length=data.length,
        lines=lines,
        ours=ours,
        torchs=theirs,
    )


def page(document: dict[str, Any]) -> str:
    """Return the page docs/accuracy.md for the document in the JSON file."""
    rows = [
        Row(**{**row, "ours": Error(**row["ours"]), "torchs": Error(**row["torchs"])})
        for row in ({name: value for name, value in row.items() if name != "above"} for row in document["rows"])
    ]
    where = f"{document['device']}, torch {document['versions']['torch']}, {document['date']}"
    head = "| scan | data | dtype | along | length | ours: max | torch: max | ours: mean | torch: mean |"
    ulps = "ours: ulp max, mean | torch: ulp max, mean |"
    above = [f"{row.op} of {row.data} in {row.dtype}, {row.along}: {', '.join(row.above)}" for row in rows if row.above]
    warning = (
        "\n**Emulated.** The kernels ran on a CPU, and torch's numbers are those of its CPU code, which accumulates "
        "float32\nin double. They say nothing about torch on a GPU.\n"
        if document["emulated"]
        else ""
    )
    table = "\n".join(
        f"| {row.op} | {row.data} | {row.dtype} | {row.along} | {row.length} "
        f"| {row.ours.max:.3g} | {row.torchs.max:.3g} | {row.ours.mean:.3g} | {row.torchs.mean:.3g} "
        f"| {row.ours.max_ulp:.3g}, {row.ours.mean_ulp:.3g} | {row.torchs.max_ulp:.3g}, {row.torchs.mean_ulp:.3g} |"
        for row in rows
    )
    found = "\n".join(f"* {line}" for line in above) if above else "Ours is nowhere above torch's."
    return f"""<!-- written by python -m benchmarks accuracy -->
# Accuracy

Absolute error against the same scan in float64, of the same data, ours and torch's; and in ulps, units in the last
place of the exact result, which are many where sums happen to cancel.

{where[0].upper() + where[1:]}.
{warning}
{head} {ulps}
|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|
{table}

## Where ours is above torch's

{found}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every line and return 1 where an error is above torch's on a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--filter", default="", help="only lines whose operator, data or dtype contain this")
    parser.add_argument("--json", type=Path, default=JSON, help="where the numbers go; default %(default)s")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes; default %(default)s")
    given = parser.parse_args(arguments)
    emulated = given.device == "cpu"
    if not emulated:
        require_gpu()
    device = "emulated on a CPU" if emulated else torch.cuda.get_device_name()
    rows = []
    for data in DATA:
        if not any(given.filter in word for word in (data.op, data.name, str(data.dtype))):
            continue
        for along in ("rows", "columns"):
            row = measure(data, along, given.device)
            rows.append(row)
            print(
                f"{row.op:13} {row.data:17} {row.dtype:9} {row.along:8} max {row.ours.max:.3g} of {row.torchs.max:.3g}"
                f", mean {row.ours.mean:.3g} of {row.torchs.mean:.3g}, ulp {row.ours.max_ulp:.3g} of "
                f"{row.torchs.max_ulp:.3g}{'  ABOVE: ' + ', '.join(row.above) if row.above else ''}",
                flush=True,
            )
    above = sum(bool(row.above) for row in rows)
    print(f"{len(rows)} lines, {above} with an error above torch's ({device})")
    document: dict[str, Any] = {
        **surroundings(),
        "device": device,
        "emulated": emulated,
        "rows": [{**asdict(row), "above": row.above} for row in rows],
    }
    given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    given.page.write_text(page(document), encoding="utf-8")
    return 1 if above and not emulated else 0
