"""Write the tables of docs/benchmarks.md and docs/uses, and the figures of README and of the first page, from results.

The results of the grid are those of ``python -m benchmarks grid -o benchmarks/results/bench_h200.json``; the commands
``variants``, ``bounds``, ``workloads``, ``uses`` and ``builds`` write those of the other tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

from benchmarks import random
from benchmarks.common import RESULTS, ROOT, Row, markdown
from benchmarks.timing import percentile
from benchmarks.verdicts import GENERIC, best_peer
from tools.performance import LEAST_SHARDED_MS, lines_of

README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
FIRST = ROOT / "docs" / "README.md"
BEGIN, END = "<!-- {0}: written by python -m benchmarks readme -->\n", "<!-- {0} end -->\n"
# The five lines of the README by the names of their cells.
EXCERPT = {
    "sum 32768x32768 dim 1": "`cumsum`, 32768 rows of 32768",
    "masked 32768x32768 dim 1": "`cumsum` with a bool mask, the same rows",
    "sum 268167x1001 dim 1": "`cumsum`, 268167 rows of 1001",
    "sum 16x16777216 dim 1": "`cumsum`, 16 rows of 16777216",
    "sum 64x4096x1024 dim 1": "`cumsum` along dim 1 of 64 x 4096 x 1024",
}
PEERS = {"torch": "torch eager", "torch.compile": "torch.compile", "Triton": "Triton", "CUB": "CUB"}
# Families with a line for each cell; every other family has one line.
SINGLE = ("origin problems",)
ESTIMATE = "generalized_advantage_estimate, 1024 steps of 256 environments"
SHARDED = {"many rows": "rows", "columns": "columns", "one row of 2^31 items": "one row"}  # beginnings of cells
WORDS = {
    "sum": "cumulative sum",
    "prod": "cumulative product",
    "reverse": "reverse cumulative sum",
    "exclusive": "exclusive sum",
    "masked": "masked cumulative sum (bool)",
}
SHOWN = ("size", "operator", "layout")  # classes of random calls on the page


def results(name: str = "bench_h200") -> Row:
    """Return the committed document of this name, by default that of the grid."""
    document: Row = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def excerpt(document: Row) -> list[str]:
    """Return the lines of the README between the markers: five cells with their peers."""
    cells, rows = {row["cell"]: row for row in document["cells"]}, []
    for cell, words in EXCERPT.items():
        row = cells[cell]
        peers = [row["peers"].get(name) for name in PEERS.values()]
        theirs = [_range([peer["fraction"]]) if peer else "not measured" for peer in peers]
        rows.append([words, f"**{_range([row['fraction']])}**", *theirs])
    said = "fraction of the bandwidth of a device-to-device copy of the same bytes."
    return [f"{_source(document)}, float32: {said}", "", *markdown(["", "scanops", *PEERS], rows)]


def summary() -> list[str]:
    """Return the table of the README: forward, with gradients and on several GPUs, and calls as users make them."""
    drawn = [row for row in lines_of("random_h200") if "fraction" in row]
    _, *sharded = lines_of("distributed_h100_x4")
    training = lines_of("training_h100")
    groups: dict[str, list[float]] = {
        f"random calls on an H200, {direction}": [row["fraction"] for row in drawn if row["direction"] == direction]
        for direction in random.GOALS
    }
    forward = [row["fraction"] for row in lines_of("forward_h100")]
    groups["forward: resets, packed sequences, half types, small inputs"] = forward
    groups["forward and backward: `linear`, `prod`, `sum`, `cummax`, `logcumsumexp`"] = [
        row["fraction"] for row in training
    ]
    large = [row for row in sharded if row["one_gpu_ms"] > LEAST_SHARDED_MS]
    for words, start in SHARDED.items():
        groups[f"4 GPUs: {words}"] = [of_four(row) for row in large if row["cell"].startswith(start)]
    rows = [
        [words, len(found), *(f"{value:.2f}" for value in (percentile(found, 50), percentile(found, 10), min(found)))]
        for words, found in groups.items()
        if found
    ]
    said = "as fractions of the speed of a copy of the least bytes that a call moves; of 4 GPUs, of four times one GPU"
    return [
        f"{_source(training[0])}: {said}.",
        "",
        *markdown(["", "cells", "median", "10th percentile", "worst"], rows),
    ]


def random_tables() -> list[str]:
    """Return what docs/benchmarks.md says of random calls: a table for each card that was measured."""
    lines: list[str] = []
    for path in sorted(RESULTS.glob("random_*.jsonl")):
        found = lines_of(path.stem)
        timed = [row for row in found if "fraction" in row]
        seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in found}))
        failed = len(found) - len(timed)
        wrong = f"{failed} {'is' if failed == 1 else 'are'} wrong or failed" if failed else "all results are right"
        file = path.relative_to(ROOT)
        rows = [
            [
                f"{direction}, {name.removeprefix('size: ')}",
                figures["calls"],
                *(f"{figures[key]:.2f}" for key in ("median", "tenth", "worst")),
                f"{100 * figures['below_tenth']:.0f} %",
            ]
            for direction, name, figures in random.by_class(timed)
            if name == "all" or name.startswith(SHOWN)
        ]
        lines += [f"{_source(found[0])}, seed {seeds}: {len(found)} calls, {wrong} ([each call](../{file})).", ""]
        lines += [*markdown(["calls", "number", "median", "10th percentile", "worst", "slow"], rows, texts=1), ""]
    goals = [
        f"{direction} below {goal.tenth[0]} of a copy and more than {goal.tenth[1]:g} us beyond it"
        for direction, goal in random.GOALS.items()
    ]
    return [*lines, f"*Slow*: the share of calls that are {'; '.join(goals)}."] if lines else []


def known_table() -> list[str]:
    """Return what docs/benchmarks.md says of classes that were slow once: a column for each card that was measured."""
    cards = {path.stem: lines_of(path.stem) for path in sorted(RESULTS.glob("known_*.jsonl"))}
    if not cards:
        return []
    found = {name: {row["call"]: row for row in rows if "fraction" in row} for name, rows in cards.items()}
    calls = dict.fromkeys(call for rows in found.values() for call in rows)
    rows = [
        [call, *(f"{each[call]['fraction']:.2f}" if call in each else "" for each in found.values())] for call in calls
    ]
    sources = "; ".join(_source(lines[0]) for lines in cards.values())
    names = [lines[0]["device"].removeprefix("NVIDIA ").split()[0] for lines in cards.values()]
    return [f"{sources}.", "", *markdown(["call", *names], rows, texts=1)]


def peers_table() -> list[str]:
    """Return what docs/benchmarks.md says of published kernels: microseconds, and what has no figure, for each card."""
    lines: list[str] = []
    for path in sorted(RESULTS.glob("peers_*.jsonl")):
        found, missing, given = list[Sequence[str]](), dict[str, str](), lines_of(path.stem)
        for row in given:
            missing |= {f"{row['scan']}: {name}": reason for name, reason in row["missing"].items()}
            for way, us in row["us"].items():
                others = [f"{name} {time:.1f}" for name, time in us.items() if name != "scanops"]
                if others:
                    found.append([f"{row['scan']}, {way}", f"{us['scanops']:.1f}", ", ".join(others)])
        lines += [f"{_source(given[0])}, microseconds.", ""]
        lines += [*markdown(["scan", "scanops", "peers"], found, texts=1), ""]
        lines += [f"- No figure for {name}: {reason}." for name, reason in missing.items()]
    return lines


def of_four(row: Row) -> float:
    """Return the speed of a sharded scan by its faster method, as a fraction of four times that of one GPU."""
    times = [row[name] for name in ("onepass_ms", "twopass_ms") if row.get(name)]
    return float(row["one_gpu_ms"] / min(times))


def numbers(document: Row) -> list[str]:
    """Return the three numbers of the first page."""
    low, high, torch = row_sums(document)
    training = lines_of("training_h100")
    (estimate,) = (row["forward"] for row in lines_of("uses_h100")[1:] if row["name"] == ESTIMATE)
    figures = {
        f"{low:.2f} to {high:.2f}": "of the bandwidth of a copy: float32 row sums of 1 to 65536 items on an H200; "
        f"`torch.cumsum` reaches at most {torch:.2f}",
        f"{statistics.median(row['fraction'] for row in training):.2f}": "of the bandwidth of a copy: median of "
        f"{len(training)} training passes, forward and backward, on an H100",
        f"{estimate['today'] / estimate['scanops']:,.0f} times": "the speed of a loop in PyTorch: advantages (GAE) "
        f"of 256 environments and 1024 steps in {estimate['scanops']:.0f} us on an H100",
    }
    return markdown(list(figures), [list(figures.values())])


def row_sums(document: Row) -> tuple[float, float, float]:
    """Return the extreme fractions of float32 sums along rows of 1 to 65536 items, and the highest of torch.cumsum."""
    rows = [
        row
        for row in document["cells"]
        if row["group"] == "table" and row["cell"].startswith("sum ") and "rows of" in row["family"]
    ]
    ours = [row["fraction"] for row in rows]
    return min(ours), max(ours), max(row["peers"]["torch eager"]["fraction"] for row in rows)


def table(document: Row) -> list[str]:
    """Return the lines of docs/benchmarks.md about the cells of the grid."""
    rows = [row for row in document["cells"] if "error" not in row]
    families = list(dict.fromkeys(row["family"] for row in rows if row["group"] != "random"))
    families.sort(key=lambda family: family not in SINGLE)  # stable: only these come first
    figures: list[list[object]] = []
    for family in families:
        members = [row for row in rows if row["family"] == family]
        if family in SINGLE:
            figures += [
                _line(f"{WORDS[row['variant']]}, {' x '.join(map(str, row['shape']))}", [row]) for row in members
            ]
        else:
            figures.append(_line(family, members))
    grid = (RESULTS / "bench_h200.json").relative_to(ROOT)
    return [
        f"{_source(document, driver=True)}. "
        "Float32 unless stated otherwise. *Of a copy*: the time of a device-to-device copy of the same number of bytes "
        "divided by the time of the scan; a line of several cells shows the lowest and the highest. *Best peer*: the "
        "fastest of torch, torch.compile, a tuned Triton kernel and CUB, as far as each was measured on the cell.",
        "",
        f"All {len(document['cells'])} cells: [{grid}](../{grid}), from `python -m benchmarks grid`. "
        + _say_summary(document["summary"]),
        "",
        *markdown(["scan", "cells", "of a copy", "best peer, of a copy", ""], figures),
    ]


def _say_summary(verdict: Row) -> str:
    drawn, generic = verdict["random_lengths"], verdict["length_as_argument"]
    wrong = f"{len(verdict['wrong'])} results are wrong" if verdict["wrong"] else "All results are right"
    return (
        f"{wrong}; in {len(verdict['below_best_peer'])} cells the best peer is ahead. Sums of "
        f"{drawn['cells']} random lengths: median {drawn['median']:.2f} of a copy, 5th percentile {drawn['p05']:.2f}, "
        f"worst {drawn['worst']:.2f}. Kernels that take the length as an argument have at least "
        f"{generic['worst_of_specialised']:.2f} of the speed of those for one length; {generic['slow']} of "
        f"{generic['cells']} have less than {GENERIC}."
    )


def variants_table() -> list[str]:
    """Return the table of the scans that the grid leaves out, and what bounds the slow ones."""
    document, counters = results("variants_h200"), results("bounds_h200")["counters"]
    found: dict[str, dict[bool, list[float]]] = {}
    bounds: dict[str, Counter[str]] = defaultdict(Counter)
    for cell, fraction in document["of_a_copy"].items():
        shape, _, name = cell.partition(": ")
        by_rows = shape.count(" x ") == 1 and shape.endswith("dim 1")
        found.setdefault(name, {True: [], False: []})[by_rows].append(fraction)
        if cell in counters:
            bounds[name][counters[cell]["bound"]] += 1
    headings = ["scan, float32 unless said otherwise", "rows of 127 to 524288", "columns of 4096 to 65536"]
    rows = [
        [name, _range(parts[True]), _range(parts[False]), ", ".join(word for word, _ in bounds[name].most_common())]
        for name, parts in found.items()
    ]
    return [f"{_source(document)}.", "", *markdown([*headings, "cells below 0.9 bound by"], rows)]


def workloads_table(file: str) -> list[str]:
    """Return the table of real programs, or of fused scans."""
    document, rows = results(file), []
    headings = {"scanops": "scanops", "today": "today's code", "compiled": "under torch.compile", "copy": "copy"}
    found = document["microseconds"].items()
    measured = [key for key in headings if any(key in row for _, row in found)]
    for name, row in found:
        times = [f"{row[key]:,.{1 if row[key] < 100 else 0}f}" if key in row else "" for key in measured]
        rows.append([name, f"**{times[0]}**", *times[1:]])
    said = "Microseconds on the GPU; *copy*: of a device-to-device copy of the bytes that must move."
    return [f"{_source(document)}. {said}", "", *markdown(["workload", *(headings[key] for key in measured)], rows)]


def uses_tables() -> dict[str, list[str]]:
    """Return the table of each page of docs/uses, by the page's name: what it opens with beside today's code."""
    heading, *lines = lines_of("uses_h100")
    pages: dict[str, list[Row]] = defaultdict(list)
    for line in lines:
        pages[line["page"]].append(line)
    pages.pop("", None)
    return {page: _uses_table(heading, rows) for page, rows in pages.items()}


def _uses_table(heading: Row, lines: Sequence[Row]) -> list[str]:
    headings = {"scanops": "scanops", "today": "the code that it replaces", "compiled": "under torch.compile"}
    passes = {"forward": "", "training": ", forward and backward"}
    measured = [key for key in headings if any(key in line.get(each, ()) for line in lines for each in passes)]
    rows = []
    for line in lines:
        for each, words in passes.items():
            if each in line:
                cells = [_time_and_memory(line[each].get(key), line[f"{each}_bytes"].get(key)) for key in measured]
                rows.append([f"{line['name']}{words}", f"**{cells[0]}**", *cells[1:]])
    said = "float32; time of a call, and the most memory that it allocates, results included"
    return [f"{_source(heading)}, {said}.", "", *markdown(["", *(headings[key] for key in measured)], rows)]


def _time_and_memory(microseconds: float | None, size: int | None) -> str:
    if microseconds is None or size is None:
        return "not measured"
    memory = f"{size / 1e6:,.{1 if size < 1e8 else 0}f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
    return f"{microseconds:,.{1 if microseconds < 100 else 0}f} us, {memory}"


def states_table() -> list[str]:
    """Return the table of selective scans beside mamba_ssm."""
    lines, rows = lines_of("states_h200"), []
    for line in lines:
        if "forward" in line:
            peak = {name: line.get(f"{name}_peak") for name in ("scanops", "mamba_ssm")}
            cells = [line["cell"]]
            for each in ("forward", "training"):
                ours, theirs = (line[each].get(name) for name in ("scanops", "mamba_ssm"))
                cells += [f"**{ours:,.0f}**", *([f"{theirs:,.0f}", f"{theirs / ours:.2f}"] if theirs else ["-", "-"])]
            cells += [f"{size / 1e6:,.0f}" if size else "-" for size in peak.values()]
            bound = max(line["forward"]["copy"], line["exponentials"]) / line["forward"]["scanops"]
            rows.append([*cells, f"{bound:.2f}"])
    said = (
        "batch x channels x length; microseconds; *factor*: time of mamba_ssm over that of scanops; *memory*: MB that "
    )
    said += "forward and backward allocate at most; *bound*: of the forward pass, the fraction of what a copy of the "
    said += "least bytes or one exponential for each state and step allows"
    headings = ["forward", "mamba_ssm", "factor", "forward and backward", "mamba_ssm", "factor", "memory", "mamba_ssm"]
    return [f"{_source(lines[0])}. {said}.", "", *markdown(["", *headings, "bound"], rows)]


def model_table() -> list[str]:
    """Return the table of a Mamba model of transformers with and without ``provide``."""
    lines = [line for line in lines_of("states_h200") if "model" in line]
    rows = [[line["model"], f"**{line['provided_ms']:,.1f}**", f"{line['loop_ms']:,.1f}"] for line in lines]
    return [f"{_source(lines[0])}; milliseconds.", "", *markdown(["", "with `provide`", "transformers' loop"], rows)]


def builds_table() -> list[str]:
    """Return the table of what kernels cost to build."""
    rows, documents = [], {"nvrtc": results("build_cost_nvrtc"), "nvcc": results("build_cost")}
    for compiler, document in documents.items():
        times = document["times"]["all"]["cpu_seconds"]
        largest = max(row["cubin_bytes"]["most"] for row in document["worst"])
        counts = [document["kernels"], len(document["refused"]), len(document["spilled"])]
        seconds = [f"{times[name]:.2f} s" for name in ("median", "95 %", "most")]
        rows.append([f"{compiler} {document[compiler]}, {document['date']}", *counts, *seconds, f"{largest:,} bytes"])
    headings = ["compiler", "kernels", "refused", "with spills", "CPU time, median", "95 %", "most", "largest cubin"]
    return markdown(headings, rows, texts=1)


def _source(document: Row, driver: bool = False) -> str:
    versions = document["versions"]
    drivers = f", driver {versions['driver']}" if driver else ""
    return f"{document['device']}, torch {versions['torch']}{drivers}, {document['date']}"


def _line(words: str, members: list[Row]) -> list[object]:
    ours = _range([row["fraction"] for row in members])
    bests = [best for row in members if (best := best_peer(row))]
    names = ", ".join(sorted({name for name, _ in bests}))
    theirs = _range([peer["fraction"] for _, peer in bests]) if bests else ""
    time = f" ({members[0]['ms']:.3f} ms)" if len(members) == 1 else ""
    return [words, len(members), f"{ours}{time}", theirs, names]


def _range(values: list[float]) -> str:
    low, high = (f"{value:.1g}" if value < 0.01 else f"{value:.2f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write pages; with ``--check`` write nothing and return 1 where one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    check = parser.parse_args(arguments).check
    document = results()
    page = PAGE.read_text(encoding="utf-8")
    parts = {"cells": table(document), "variants": variants_table(), "builds": builds_table()}
    parts |= {"random": random_tables(), "known": known_table(), "peers": peers_table()}
    parts |= {name: workloads_table(f"{name}_h200") for name in ("workloads", "fusion")}
    for name, lines in parts.items():
        page = _fill(page, name, lines)
    text = _fill(README.read_text(encoding="utf-8"), "cells", excerpt(document))
    first = _fill(FIRST.read_text(encoding="utf-8"), "numbers", numbers(document))
    fresh = {README: _fill(text, "summary", summary()), FIRST: first, PAGE: page}
    uses = uses_tables() | {"selective-scan": states_table(), "mamba-models": model_table()}
    for name, lines in uses.items():
        path = ROOT / "docs" / "uses" / f"{name}.md"
        fresh[path] = _fill(path.read_text(encoding="utf-8"), "times", lines)
    if not check:
        for path, text in fresh.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in fresh.items() if path.read_text(encoding="utf-8") != text]
    if stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        print(f"stale: {names}; run python -m benchmarks readme", file=sys.stderr)
    return int(bool(stale))


def _fill(text: str, name: str, lines: list[str]) -> str:
    """Return the text of a page with new lines between the markers of this name."""
    begin, end = BEGIN.format(name), END.format(name)
    head, rest = text.split(begin)
    return "".join([head, begin, *(f"{line}\n" for line in lines), end, rest.split(end)[1]])
