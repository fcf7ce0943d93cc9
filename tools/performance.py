"""Pictures of results: docs/performance.md from benchmarks/results, and a page of a run on any GPU.

Needs neither torch nor a compiler.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from tools.committed import ROOT

__all__ = ["LEAST_SHARDED_MS", "lines_of", "main", "performance_files", "report"]

Row = tuple[str, Sequence[float | None]]  # a label, and a value for each series
EXAMPLES = {  # cells of the first picture
    "sum 32768x32768 dim 1": "cumsum, 32768 rows of 32768",
    "masked 32768x32768 dim 1": "cumsum with a bool mask, the same rows",
    "sum 268167x1001 dim 1": "cumsum, 268167 rows of 1001",
    "sum 16x16777216 dim 1": "cumsum, 16 rows of 16777216",
    "sum 64x4096x1024 dim 1": "cumsum along dim 1 of 64 x 4096 x 1024",
}
COLOURS = ("#00897b", "#e07a5f", "#8d99ae")  # of scanops and its peers, legible on both backgrounds
TEXT, LINES = "#1f2933", "#d0d7de"
DARK = f"""<style>@media (prefers-color-scheme: dark) {{
[style*="fill: {TEXT}"] {{ fill: #e6edf3 !important }}
[style*="stroke: {LINES}"] {{ stroke: #444c56 !important }}
}}</style>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Horizontal bars: one group per row below its label, one bar per series, on a linear or a logarithmic scale."""

    title: str
    source: str  # GPU, versions and date
    series: tuple[str, ...]
    rows: tuple[Row, ...]
    unit: str  # behind a value
    ticks: tuple[float, ...]  # the first and the last are the ends of the scale
    logarithmic: bool = False

    def svg(self) -> str:
        """The picture, by matplotlib, in colours for a light page and for a dark one."""
        matplotlib, figures = (importlib.import_module(name) for name in ("matplotlib", "matplotlib.figure"))
        count, places = len(self.series), range(len(self.rows))
        style: dict[str, Any] = {name: TEXT for name in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")}
        style |= {"svg.fonttype": "none", "svg.hashsalt": self.title, "font.size": 9, "grid.color": LINES}
        with matplotlib.rc_context(style):
            height = 1.2 + max(0.16 * (count + 1), 0.42) * len(self.rows)
            figure = figures.Figure(figsize=(7.2, height), layout="constrained")
            axes = figure.subplots()
            for number, (name, colour) in enumerate(zip(self.series, COLOURS, strict=False)):
                values = [row[number] for _, row in self.rows]
                at = [place + number / (count + 1) for place in places]
                widths = [math.nan if value is None else min(value, self.ticks[-1]) for value in values]
                bars = axes.barh(at, widths, 0.9 / (count + 1), color=colour, label=name)
                axes.bar_label(bars, ["" if value is None else _text(value) for value in values], padding=3, fontsize=8)
            middle = (count - 1) / 2 / (count + 1)
            axes.set_yticks([place + middle for place in places], [textwrap.fill(label, 48) for label, _ in self.rows])
            axes.set_ylim(len(self.rows) - 0.2, -0.6)
            axes.set_xscale("log" if self.logarithmic else "linear")
            axes.set_xticks(self.ticks, [f"{tick:,g}{self.unit}" for tick in self.ticks], minor=False)
            axes.set_xlim(self.ticks[0], self.ticks[-1])
            figure.suptitle(textwrap.fill(self.title, 80), x=0, ha="left", weight="bold", fontsize=11)
            figure.supxlabel(textwrap.fill(self.source, 120), x=0, ha="left", fontsize=8)
            axes.grid(axis="x")
            axes.set_axisbelow(True)
            axes.tick_params(length=0, which="both")
            axes.spines[:].set_visible(False)
            if count > 1:
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=count, frameon=False)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
        return text[text.index("<svg") :].replace("<defs>", f"{DARK}<defs>", 1)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def performance_files() -> dict[str, str]:
    """Path under docs/ and text of the page."""
    sections = [
        f"## {chart.title}\n\n{words}\n\n![{chart.title}](pictures/{name}.svg)\n{below}"
        for name, (chart, words, below) in _charts().items()
    ]
    return {"performance.md": PAGE + "\n".join([*sections, *_tables()])}


def main() -> None:
    """Draw the pictures, where matplotlib is there."""
    for name, (chart, *_) in _charts().items():
        (ROOT / "docs" / "pictures" / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")


def _tables() -> list[str]:
    """Sections with a table of what was measured beside unmodified programs and beside other packages, if it was."""
    return [*draw_patched_section(lines_of("patched_h100")), *drop_ins_section(lines_of("drop_ins_h100"))]


def draw_patched_section(lines: Sequence[dict[str, Any]]) -> list[str]:
    """The section about programs under ``patch_torch``, of the lines that ``python -m benchmarks patched`` wrote."""
    rows = [line for line in lines[1:] if line["name"].endswith((", small, ms", ", large, ms"))]
    if not rows:
        return []
    table = ["| program, tensors | without, ms | with patch_torch, ms | ratio |", "|---|---:|---:|---:|"]
    for row in rows:
        name = row["name"].removesuffix(", ms")
        table.append(f"| {name} | {row['plain']:,.3f} | {row['patched']:,.3f} | {row['ratio']:.2f} |")
    words = "Milliseconds per step of programs that were not changed, with small and with large tensors."
    words += " It pays where scans take a large part of a step."
    return [_section("Unmodified programs under patch_torch", f"{words} {_source(lines[0])}.", table)]


def drop_ins_section(lines: Sequence[dict[str, Any]]) -> list[str]:
    """The section about ``scanops.compat``, of the lines that ``python -m benchmarks drop_ins`` wrote."""
    table = [
        "| function | pass | scanops, us | the original, us | its formula in PyTorch, us |",
        "|---|---|---:|---:|---:|",
    ]
    for row in lines[1:]:
        for key, words in (("forward", "forward"), ("training", "forward and backward")):
            if key in row:
                figures = ["" if (us := row[key][name]) is None else f"{us:,.0f}" for name in _BESIDE]
                table.append(f"| {row['name']} | {words} | {' | '.join(figures)} |")
    if len(table) == 2:
        return []
    words = "Functions of `scanops.compat`. An original without a figure was not installed or refused the tensors."
    return [_section("Drop-in functions", f"{words} {_source(lines[0])}.", table)]


_BESIDE = ("scanops", "original", "formula")


def _section(title: str, words: str, table: Sequence[str]) -> str:
    return f"## {title}\n\n{words}\n\n" + "\n".join(table) + "\n"


PAGE = """<!-- written by python -m tools.pages -->
# Performance

How fast scans are, as a fraction of the speed of a copy of the bytes that they read and write (1 is the copy, higher is
better), and beside the code that people run today.
[Benchmarks](benchmarks.md) has all figures with their peers, and [performance tuning](tuning.md) says what to do where
a call is slow.

To measure your own GPU, run this in a checkout. It takes about a minute and writes one HTML page:

```sh
python -m benchmarks report  # writes scanops-report.html
```

Every figure is one of [benchmarks/results](../benchmarks/README.md), with its GPU, versions and date.

"""
PEERS = ("scanops", "torch", "compile")  # of gradients


def report(document: dict[str, Any], table: str) -> str:
    """A self-contained HTML page of a run of ``python -m benchmarks grid``, with its table of cells as text."""
    if importlib.util.find_spec("matplotlib") is None:
        body = ["<p>With matplotlib there are pictures here: pip install matplotlib.</p>"]
    else:
        body = [chart.svg() for chart in _grid_charts(document)]
    return REPORT.format(title=f"scanops on {escape(document['device'])}", charts="\n".join(body), table=escape(table))


REPORT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font-family: sans-serif }}
body {{ max-width: 1080px; margin: auto; padding: 1em }}
pre {{ overflow-x: auto }}
</style>
</head>
<body>
<h1>{title}</h1>
{charts}
<h2>All cells</h2>
<pre>{table}</pre>
</body>
</html>
"""


def _grid_charts(grid: dict[str, Any]) -> list[Chart]:
    """The fraction of a copy by class, and by length of float32 row sums; without cells there is no chart."""
    classes: dict[str, list[dict[str, Any]]] = {}
    lengths: dict[int, list[dict[str, Any]]] = {}
    for cell in grid["cells"]:
        if "error" not in cell and cell["group"] != "random":
            classes.setdefault(cell["family"], []).append(cell)
            if cell["group"] == "table" and cell["cell"].startswith("sum ") and "rows of" in cell["family"]:
                lengths.setdefault(cell["shape"][1], []).append(cell)
    rows = {
        "": [(name, _medians(cells)) for name, cells in classes.items()],
        ": float32 row sums by length": [(f"{n} items", _medians(lengths[n])) for n in sorted(lengths)],
    }
    return [
        Chart(
            title=f"Fraction of the bandwidth of a copy{what}",
            source=f"{_source(grid)}; medians of cells",
            series=("scanops", "best peer"),
            rows=tuple(found),
            unit="",
            ticks=(0, 0.25, 0.5, 0.75, 1),
        )
        for what, found in rows.items()
        if found
    ]


def _medians(cells: Sequence[dict[str, Any]]) -> tuple[float, float | None]:
    """The medians of cells: of scanops, and of the fastest right peer of each."""
    right = [[peer["fraction"] for peer in cell["peers"].values() if peer and peer["ok"]] for cell in cells]
    best = [max(found) for found in right if found]
    return median(cell["fraction"] for cell in cells), median(best) if best else None


def _examples(grid: dict[str, Any]) -> Chart:
    """A few cells beside PyTorch, for the first page."""
    cells = {cell["cell"]: cell for cell in grid["cells"]}

    def fractions(name: str) -> tuple[float | None, ...]:
        peers = cells[name]["peers"]
        found = [peers.get(peer) for peer in ("torch eager", "torch.compile")]
        return (cells[name]["fraction"], *(each["fraction"] if each else None for each in found))

    return Chart(
        title="Fraction of the bandwidth of a copy: scanops and PyTorch",
        source=f"{_source(grid)}, float32; 1 is a device-to-device copy of the same bytes",
        series=("scanops", "torch", "torch.compile"),
        rows=tuple((words, fractions(name)) for name, words in EXAMPLES.items()),
        unit="",
        ticks=(0, 0.25, 0.5, 0.75, 1),
    )


def _training() -> tuple[Chart, list[str]]:
    """Forward and backward passes beside a copy of their least bytes, and the lines of a table of all figures."""
    cells = lines_of("training_h100")
    peers = sorted({name for cell in cells for name in cell["us"]} - {"copy", "scanops"})
    fla = [name for name in peers if name.endswith("_hgrn")]

    def fractions(cell: dict[str, Any]) -> tuple[float | None, ...]:
        us = cell["us"]
        best = min((us[name] for name in fla if name in us), default=None)
        found = (us.get("scanops"), us.get("accelerated-scan"), best)
        return tuple(None if each is None else us["copy"] / each for each in found)

    source = f"{cells[0]['device']}, torch {cells[0]['versions']['torch']}, {max(cell['date'] for cell in cells)}"
    chart = Chart(
        title="Training: forward and backward pass, fraction of the bandwidth of a copy",
        source=f"{source}; a copy of the least bytes that both passes read and write is 1",
        series=("scanops", "accelerated-scan", "fla-core"),
        rows=tuple((cell["cell"], fractions(cell)) for cell in cells),
        unit="",
        ticks=(0, 0.25, 0.5, 0.75, 1),
    )
    headings = ["scan", "bytes per item", "copy, us", "scanops, us", *(f"{name}, us" for name in peers), "of a copy"]
    table = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    for cell in cells:
        figures = [f"{cell['us'][name]:,.0f}" if name in cell["us"] else "" for name in ("copy", "scanops", *peers)]
        table.append(f"| {cell['cell']} | {cell['bytes']} | {' | '.join(figures)} | {cell['fraction']:.2f} |")
    return chart, table


def _draw_sharded() -> Chart:
    """Sharded scans on four GPUs, as fractions of the speed of four."""
    header, *cells = lines_of("distributed_h100_x4")
    large = [cell for cell in cells if cell["dtype"] == "torch.float32" and cell["one_gpu_ms"] > LEAST_SHARDED_MS]
    rows = []
    for cell in large:
        passes = ", forward and backward" if cell.get("backward") else ""
        times = (cell.get(f"{way}_ms") for way in ("onepass", "twopass", "torch"))
        parts = tuple(None if each is None else cell["one_gpu_ms"] / each for each in times)
        rows.append((f"{cell['op']}, {cell['cell']}{passes}", parts))
    return Chart(
        title="Sharded scans on 4 GPUs, fraction of four times the speed of one",
        source=f"{header['ranks']} x {header['gpu']}, torch {header['torch']}, {header['date']}, float32",
        series=("one pass", "two passes", "plain PyTorch"),
        rows=tuple(rows),
        unit="",
        ticks=(0, 0.25, 0.5, 0.75, 1),
    )


LEAST_SHARDED_MS = 0.45  # of one GPU's own part: smaller scans wait for the host


def _charts() -> dict[str, tuple[Chart, str, str]]:
    """Each picture by name, with the words above it and what stands below it."""
    training, table = _training()
    grid, programs, passes = (_read(f"{name}_h200") for name in ("bench", "workloads", "gradients"))
    store, nvrtc = _read("store_speed_h200"), _read("build_cost_nvrtc")
    classes, lengths = _grid_charts(grid)
    measured = [(name, row) for name, row in programs["microseconds"].items() if "today" in row]
    ratios = sorted((row["today"] / row["scanops"], name) for name, row in measured)[::-1]
    first, disk = store["first_calls"], store["from_disk"]
    times = [
        ("load a cubin from the store", (disk["cubin"]["store"]["total_ms"],)),
        ("load a library from the store", (disk["library"]["store"]["total_ms"],)),
        ("compile with NVRTC, median of 1782 kernels", (1000 * nvrtc["times"]["all"]["seconds"]["median"],)),
        *(
            (f"first call, {words}, {state} process", (1000 * first[form][key]["median"],))
            for form, words in (("cubin", "NVRTC"), ("library", "nvcc"))
            for key, state in (("running", "running"), ("cold", "new"))
        ),
    ]
    both = [
        (name, tuple(row["least"] / row[way]["copies"] if row.get(way) else None for way in PEERS))
        for name, row in passes["passes"].items()
        if row["least"] is not None
    ]
    return {
        "examples": (_examples(grid), "A series without a bar was not measured.", ""),
        "classes": (
            classes,
            "Sums and products; the best peer of a cell is the fastest of torch, torch.compile, Triton and CUB.",
            "",
        ),
        "lengths": (lengths, "Contiguous rows of large tensors.", ""),
        "training": (
            training,
            "Both passes of a scan with gradients. `python -m benchmarks training` measures them.",
            "\n" + "\n".join(table) + "\n",
        ),
        "sharded": (
            _draw_sharded(),
            "A scan along a dimension that is [sharded over GPUs](distributed.md), float32. At 1 it takes as long as\n"
            "one GPU needs for its own part.",
            "",
        ),
        "workloads": (
            Chart(
                title="Speed-up over the code that people run today",
                source=_source(programs),
                series=("scanops",),
                rows=tuple((name, (ratio,)) for ratio, name in ratios),
                unit="x",
                ticks=(1, 10, 100, 1000, 10000),
                logarithmic=True,
            ),
            "Scans of real programs; the [table](benchmarks.md#real-programs) has microseconds and torch.compile.",
            "",
        ),
        "passes": (
            Chart(
                title="Forward and backward, fraction of the bandwidth of a copy",
                source=f"{_source(passes)}, {' x '.join(map(str, passes['shape']))} float32",
                series=("scanops", "torch", "torch.compile"),
                rows=tuple(both),
                unit="",
                ticks=(0, 0.25, 0.5, 0.75, 1),
            ),
            "Beside a copy of the least bytes that both passes move. [More figures](benchmarks.md#gradients), also of\n"
            " second derivatives.",
            "",
        ),
        "builds": (
            Chart(
                title="Milliseconds until a kernel is ready",
                source=f"{_source(store)}; NVRTC {nvrtc['nvrtc']}, {nvrtc['date']}",
                series=("scanops",),
                rows=tuple(times),
                unit=" ms",
                ticks=(0.1, 1, 10, 100, 1000, 10000),
                logarithmic=True,
            ),
            "A kernel is built once per machine or comes with a [pack](deployment.md); later processes load it.",
            "",
        ),
    }


def _source(document: dict[str, Any]) -> str:
    return f"{document['device']}, torch {document['versions']['torch']}, {document['date']}"


def lines_of(name: str) -> list[dict[str, Any]]:
    """The lines of the committed results of this name; none where it was not measured yet."""
    path = ROOT / f"benchmarks/results/{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
