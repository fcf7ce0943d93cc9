"""Pictures of results: docs/performance.md from benchmarks/results, and a page of a run on any GPU.

Needs neither torch nor a compiler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from tools.committed import ROOT

__all__ = ["performance_files", "report"]

Row = tuple[str, Sequence[float | None]]  # a label, and a value for each series
COLOURS = ("#00897b", "#e07a5f", "#8d99ae")  # of scanops and its peers, legible on both backgrounds
THEMES = {"light": ("#1f2933", "#d0d7de"), "dark": ("#e6edf3", "#444c56")}  # text, lines
LABEL, WIDTH, BAR, GAP = 520, 1080, 11, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Horizontal bars: one group per row, one bar per series, on a linear or a logarithmic scale."""

    title: str
    source: str  # GPU, versions and date
    series: tuple[str, ...]
    rows: tuple[Row, ...]
    unit: str  # behind a value
    ticks: tuple[float, ...]  # the first and the last are the ends of the scale
    logarithmic: bool = False

    def svg(self, text: str, line: str) -> str:
        """The picture in a colour of text and one of lines."""
        step = len(self.series) * BAR + GAP
        bottom = 62 + step * len(self.rows)
        parts = [f'<text x="10" y="22" font-size="16" font-weight="bold">{escape(self.title)}</text>']
        for place, (name, colour) in enumerate(zip(self.series, COLOURS, strict=False)):
            x = LABEL + 130 * place
            parts.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>')
            parts.append(f'<text x="{x + 17}" y="45">{escape(name)}</text>')
        for tick in self.ticks:
            at = self._x(tick)
            parts.append(f'<path d="M{at:.1f} 54V{bottom}" stroke="{line}"/>')
            parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}{self.unit}</text>')
        for number, (label, values) in enumerate(self.rows):
            y = 60 + number * step
            middle = y + len(self.series) * BAR / 2 + 4
            parts.append(f'<text x="{LABEL - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
            for place, value in enumerate(values):
                if value is not None:
                    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
                    end, top = self._x(value), y + place * BAR
                    size = f'width="{max(1, end - LABEL):.1f}" height="{BAR - 2}"'
                    parts.append(f'<rect x="{LABEL}" y="{top}" {size} fill="{COLOURS[place]}"/>')
                    parts.append(f'<text x="{end + 4:.1f}" y="{top + 8}" font-size="9">{shown}</text>')
        parts.append(f'<text x="10" y="{bottom + 38}" font-size="11">{escape(self.source)}</text>')
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 48}" role="img" '
        head += f'font-family="sans-serif" font-size="12" fill="{text}">'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", *parts, "</svg>", ""])

    def _x(self, value: float) -> float:
        scale = math.log10 if self.logarithmic else float
        low, high = scale(self.ticks[0]), scale(self.ticks[-1])
        part = (scale(max(value, self.ticks[0])) - low) / (high - low)
        return LABEL + min(1.0, part) * (WIDTH - LABEL - 60)


def performance_files() -> dict[str, str]:
    """Path under docs/ and text of the page and of its pictures."""
    files, sections = {}, []
    for name, (chart, words) in _charts().items():
        for theme, colours in THEMES.items():
            files[f"pictures/{name}-{theme}.svg"] = chart.svg(*colours)
        dark, light = (f"pictures/{name}-{theme}.svg" for theme in ("dark", "light"))
        sections.append(
            f"## {chart.title}\n\n{words}\n\n<picture>\n"
            f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
            f'<img src="{light}" alt="{escape(chart.title)}">\n</picture>\n'
        )
    return {"performance.md": PAGE + "\n".join(sections), **files}


PAGE = """<!-- written by python -m tools.pages -->
# Performance

The pictures are drawn from the results in [benchmarks/results](../benchmarks/README.md); `make docs` draws them again,
and a test fails where they are stale. All figures with their peers and limits: [benchmarks](benchmarks.md).
`python -m benchmarks grid --quick --report out.html`, in a checkout, measures your own GPU in about a minute and draws
the first two for it; [performance tuning](tuning.md) says what to do where a call is slow.

"""


def report(document: dict[str, Any], table: str) -> str:
    """A self-contained HTML page of a run of ``python -m benchmarks grid``, with its table of cells as text."""
    body = [chart.svg("currentColor", "#8886") for chart in _grid_charts(document)]
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


def _charts() -> dict[str, tuple[Chart, str]]:
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
        (name, tuple(row[way]["copies"] if row.get(way) else None for way in ("scanops", "torch", "compile")))
        for name, row in passes["passes"].items()
    ]
    return {
        "classes": (
            classes,
            "Sums and products; the best peer of a cell is the fastest of torch, torch.compile, Triton and CUB.",
        ),
        "lengths": (lengths, "Contiguous rows of large tensors."),
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
        ),
        "passes": (
            Chart(
                title="Forward and backward, in times of a copy",
                source=f"{_source(passes)}, {' x '.join(map(str, passes['shape']))} float32",
                series=("scanops", "torch", "torch.compile"),
                rows=tuple(both),
                unit="",
                ticks=(1, 10, 100, 1000),
                logarithmic=True,
            ),
            'Shorter is better; lines that end with "again" include the second derivative.',
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
        ),
    }


def _source(document: dict[str, Any]) -> str:
    return f"{document['device']}, torch {document['versions']['torch']}, {document['date']}"


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
    return found
