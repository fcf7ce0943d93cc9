"""Measure the error of scanops and of torch against float64 on the same data; write docs/accuracy.md.

Writes benchmarks/results/accuracy.json as well. Without a GPU the kernels are emulated and compared with torch's CPU
code, which accumulates float32 in double; only figures of a GPU are comparable.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

import scanops
from benchmarks.common import RESULTS, ROOT, Row, markdown, require_gpu, write

JSON, PAGE = RESULTS / "accuracy.json", ROOT / "docs" / "accuracy.md"
LINES = {"cuda": 32, "cpu": 2}  # several draws, of which the worst counts
TIE = 1.001  # rounding to half precision depends on the last bit of a float
Draw = Callable[[int, int], torch.Tensor]  # lines, length


def _great_then_small(lines: int, length: int) -> torch.Tensor:
    x = torch.rand(lines, length)
    x[:, 0] = 1e8
    return x


def _near_one(spread: float) -> Draw:
    return lambda lines, length: 1 + spread * torch.randn(lines, length)


def _far_apart(lines: int, length: int) -> torch.Tensor:
    return 1e3 * torch.randn(lines, length)


class Data(NamedTuple):
    """One operator, dtype and distribution of the data to scan."""

    op: str
    name: str
    dtype: torch.dtype
    length: int
    draw: Draw


DATA = (
    Data("sum", "randn", torch.float32, 1_000_000, torch.randn),
    Data("sum", "randn", torch.float16, 500_000, torch.randn),
    Data("sum", "randn", torch.bfloat16, 500_000, torch.randn),
    Data("sum", "ones, beyond 256", torch.bfloat16, 4096, torch.ones),
    Data("sum", "1e8, then rand", torch.float32, 100_000, _great_then_small),
    Data("prod", "1 + 1e-3 randn", torch.float32, 100_000, _near_one(1e-3)),
    Data("prod", "1 + 1e-2 randn", torch.float16, 5000, _near_one(1e-2)),
    Data("logcumsumexp", "1000 randn", torch.float32, 40_000, _far_apart),
    Data("logcumsumexp", "1000 randn", torch.bfloat16, 40_000, _far_apart),
    Data("logcumsumexp", "randn", torch.float32, 40_000, torch.randn),
)
TORCHS = {"sum": torch.cumsum, "prod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}


class Error(NamedTuple):
    """Errors of a result relative to the scan in float64."""

    max: float
    mean: float
    max_ulp: float  # in units of the exact result's last place, in the output's dtype
    mean_ulp: float


def above(row: Row) -> list[str]:
    """Return the errors in which scanops is above torch; ulps are left out, since cancelling sums dominate them."""
    return [name for name in ("max", "mean") if row["ours"][name] > TIE * row["torchs"][name]]


def error(y: torch.Tensor, exact: torch.Tensor) -> Error:
    """Return the error where the exact result is finite; a result that is not finite there is infinitely wrong."""
    finfo = torch.finfo(y.dtype)
    legal = exact.isfinite() & (exact.abs() <= finfo.max)
    exact, wide = exact[legal], y.double()[legal]
    off = (wide - exact).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    place = torch.ldexp(torch.ones_like(exact), torch.frexp(exact.abs().clamp(min=finfo.tiny)).exponent - 1) * finfo.eps
    ulps = off / place
    return Error(*(float(each) for each in (off.max(), off.mean(), ulps.max(), ulps.mean())))


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
    row: Row = {
        **{"op": data.op, "data": data.name, "dtype": str(data.dtype).removeprefix("torch."), "along": along},
        **{"length": data.length, "lines": lines},
        **{"ours": ours._asdict(), "torchs": error(function(x, dim), exact)._asdict()},
    }
    return {**row, "above": above(row)}


def page(document: Row) -> str:
    """Return the page docs/accuracy.md for the document in the JSON file."""
    where = f"{document['device']}, torch {document['versions']['torch']}, {document['date']}"
    kinds = ("ours: max", "torch: max", "ours: mean", "torch: mean", "ours: ulp max, mean", "torch: ulp max, mean")
    rows, found = [], []
    for row in document["rows"]:
        ours, theirs = Error(**row["ours"]), Error(**row["torchs"])
        errors = [f"{each:.3g}" for each in (ours.max, theirs.max, ours.mean, theirs.mean)]
        ulps = [f"{each.max_ulp:.3g}, {each.mean_ulp:.3g}" for each in (ours, theirs)]
        rows.append([*(row[name] for name in ("op", "data", "dtype", "along", "length")), *errors, *ulps])
        if names := above(row):
            found.append(f"* {row['op']} of {row['data']} in {row['dtype']}, {row['along']}: {', '.join(names)}")
    warning = (
        "\n**Emulated.** The kernels ran on a CPU, and torch's numbers are those of its CPU code, which accumulates "
        "float32\nin double. They say nothing about torch on a GPU.\n"
        if document["emulated"]
        else ""
    )
    table = "\n".join(markdown(("scan", "data", "dtype", "along", "length", *kinds), rows, texts=4))
    return f"""<!-- written by python -m benchmarks accuracy -->
# Accuracy

Absolute error against the same scan in float64, of the same data, ours and torch's; and in ulps, units in the last
place of the exact result, which are many where sums happen to cancel.

{where[0].upper() + where[1:]}.
{warning}
{table}

## Where ours is above torch's

{chr(10).join(found) or "Ours is nowhere above torch's."}
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
    chosen = [data for data in DATA if any(given.filter in word for word in (data.op, data.name, str(data.dtype)))]
    rows = []
    for data, along in itertools.product(chosen, ("rows", "columns")):
        rows.append(row := measure(data, along, given.device))
        said = {name: f"{row['ours'][name]:.3g} of {row['torchs'][name]:.3g}" for name in row["ours"]}
        print(*(row[name] for name in ("op", "data", "dtype", "along")), said, *row["above"], flush=True)
    worse = sum(bool(row["above"]) for row in rows)
    print(f"{len(rows)} lines, {worse} with an error above torch's ({device})")
    write(given.json, {"device": device, "emulated": emulated, "rows": rows})
    given.page.write_text(page(json.loads(given.json.read_text(encoding="utf-8"))), encoding="utf-8")
    return 1 if worse and not emulated else 0
