"""Error against float64, ours and torch's on the same data: python benchmarks/accuracy.py [--device cuda|cpu].

Writes benchmarks/results/accuracy.json and docs/accuracy.md, and says where ours is above torch's. With no GPU the
kernels are emulated, and what they are compared with is torch's CPU code, which accumulates float32 in double: the
numbers of a GPU are those that count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

import scanops

ROOT = Path(__file__).resolve().parent.parent
JSON, PAGE = ROOT / "benchmarks" / "results" / "accuracy.json", ROOT / "docs" / "accuracy.md"
LINES = {"cuda": 32, "cpu": 2}  # side by side, so that the worst of several draws is seen
TIE = 1.001  # halves that lie between two are rounded by the last bit of a float
Draw = Callable[[int, int], torch.Tensor]  # lines, length


def _great_then_small(lines: int, length: int) -> torch.Tensor:
    x = torch.rand(lines, length)
    x[:, 0] = 1e8
    return x


def _near_one(spread: float) -> Draw:
    return lambda lines, length: 1 + spread * torch.randn(lines, length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is scanned."""

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
    """How far a result is from float64's."""

    max: float
    mean: float
    max_ulp: float  # in units of the exact result's last place, in the output's dtype
    mean_ulp: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

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
        """The measures in which ours is above torch's. Ulps of sums that cancel measure the draw, and do not count."""
        ours, theirs = asdict(self.ours), asdict(self.torchs)
        return [name for name in ("max", "mean") if ours[name] > TIE * theirs[name]]


def error(y: torch.Tensor, exact: torch.Tensor) -> Error:
    """Of what came out, where the exact result is finite; a result that is not finite there is infinitely far off."""
    finfo = torch.finfo(y.dtype)
    legal = exact.isfinite() & (exact.abs() <= finfo.max)
    exact, wide = exact[legal], y.double()[legal]
    off = (wide - exact).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    place = torch.ldexp(torch.ones_like(exact), torch.frexp(exact.abs().clamp(min=finfo.tiny)).exponent - 1) * finfo.eps
    ulps = off / place
    return Error(max=float(off.max()), mean=float(off.mean()), max_ulp=float(ulps.max()), mean_ulp=float(ulps.mean()))


def measure(data: Data, along: str, device: str) -> Row:
    """Scan the same data by both, along its rows or as columns."""
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
    """The table as a page of docs/, from what the JSON file holds."""
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
    return f"""<!-- written by benchmarks/accuracy.py -->
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--filter", default="", help="only lines whose operator, data or dtype contain this")
    parser.add_argument("--json", type=Path, default=JSON, help="where the numbers go; default %(default)s")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes; default %(default)s")
    arguments = parser.parse_args()
    emulated = arguments.device == "cpu"
    if not emulated and not torch.cuda.is_available():
        print("no GPU that torch can use: leave --device out, or pass --device cpu", file=sys.stderr)
        return 2
    device = "emulated on a CPU" if emulated else torch.cuda.get_device_name()
    rows = []
    for data in DATA:
        if not any(arguments.filter in word for word in (data.op, data.name, str(data.dtype))):
            continue
        for along in ("rows", "columns"):
            row = measure(data, along, arguments.device)
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
        "device": device,
        "emulated": emulated,
        "date": date.today().isoformat(),
        "versions": {"torch": torch.__version__, "scanops": scanops.__version__},
        "rows": [{**asdict(row), "above": row.above} for row in rows],
    }
    arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    arguments.page.write_text(page(document), encoding="utf-8")
    return 1 if above and not emulated else 0


if __name__ == "__main__":
    raise SystemExit(main())
