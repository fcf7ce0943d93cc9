"""Write the benchmark table into README.md from the committed results: python benchmarks/readme.py [--check]."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "h200.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- cells: written by benchmarks/readme.py -->\n", "<!-- cells end -->\n"

# (row of the table, cell of the results)
ROWS = (
    ("cumulative product, 32768 x 32768", "prod 32768x32768 dim 1"),
    ("cumulative product along the first dim of 32768 x 32768", "prod 32768x32768 dim 0"),
    ("cumulative product along the middle of 1024 x 1024 x 1024", "prod 1024x1024x1024 dim 1"),
    ("reverse cumulative sum, 32768 x 32768", "reverse 32768x32768 dim 1"),
    ("masked cumulative sum (bool), 32768 x 32768", "masked 32768x32768 dim 1"),
    ("exclusive sum, 32768 x 32768", "exclusive 32768x32768 dim 1"),
    ("sum, rows of 4", "sum 67108864x4 dim 1"),
    ("sum, rows of 64", "sum 4194304x64 dim 1"),
    ("sum, rows of 1024", "sum 262144x1024 dim 1"),
    ("sum, rows of 4097", "sum 65520x4097 dim 1"),
    ("sum, rows of 32768", "sum 8192x32768 dim 1"),
    ("sum, first dim of 16384 x 16384", "sum 16384x16384 dim 0"),
    ("sum, middle dim of 512 x 512 x 1024", "sum 512x512x1024 dim 1"),
    ("sum, last dim of 512 x 512 x 1024", "sum 512x512x1024 dim 2"),
    ("sum, one row of 2^28", "sum 268435456 dim 0"),
    ("sum, one row of 2^28, float64", "sum_f64 268435456 dim 0"),
    ("sum, rows of 32768, bfloat16", "sum_bf16 8192x32768 dim 1"),
    ("sum, rows of 1024, int32 to int64", "sum_i32_i64 262144x1024 dim 1"),
)


def table() -> str:
    """The lines between the markers."""
    results = json.loads(RESULTS.read_text())
    cells = {cell["cell"]: cell for cell in results["cells"]}
    versions = results["versions"]
    lines = [
        f"{results['device']}, torch {versions['torch']}, driver {versions['driver']}, {results['date']}. "
        "Float32 unless said otherwise. *Of a copy*: the time of a device-to-device copy of as many bytes over the "
        "time of the scan.",
        f"All {len(cells)} cells: [benchmarks/results/{RESULTS.name}](benchmarks/results/{RESULTS.name}), from "
        "`python benchmarks/cells.py`.",
        "",
        "| scan | ms | of a copy | torch, of a copy | times torch |",
        "|---|---|---|---|---|",
    ]
    for words, name in ROWS:
        cell = cells[name]
        speedup = cell["torch_ms"] / cell["ms"]
        lines.append(
            f"| {words} | {cell['ms']:.3f} | {cell['fraction']:.2f} | {cell['torch_fraction']:.3f} | {speedup:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when README.md is stale")
    text = README.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    fresh = head + BEGIN + table() + END + tail
    if parser.parse_args().check:
        if fresh != text:
            print("README.md is stale: run python benchmarks/readme.py", file=sys.stderr)
        return int(fresh != text)
    README.write_text(fresh)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
