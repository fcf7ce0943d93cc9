"""Bytes of packs: the cubins of one kernel for eight targets, for each of the committed kernels by default.

python -m benchmarks pack [SLUG ...] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT, Row, child, result_file, write

TARGETS = "sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_103,sm_120"
MOST_BYTES = 25_000  # of an archive of one kernel for all of them


def pack_kernel(slug: str, place: Path) -> int:
    """Precompile a kernel into a folder and pack it; return the bytes of the archive.

    Where few lines have a kernel of their own, the archive holds both kernels and half of it is counted.
    """
    listed = place.with_name(f"{place.name}.toml")
    listed.write_text(f'specs = ["{slug.removesuffix("-few")}"]\n', encoding="utf-8")
    variables = {"SCANOPS_STORE": place.with_name(f"{place.name}.store"), "SCANOPS_BUILDER": "nvrtc"}
    built = run_scanops("precompile", listed, "--targets", TARGETS, "-o", place, **variables)["built"]
    archive = int(run_scanops("pack", place, "-o", f"{place}.tar.xz", **variables)["bytes"])
    print(f"{8 * archive // built:7,} bytes: {slug}, {built} cubins", flush=True)
    return 8 * archive // int(built)


def run_scanops(*words: object, **variables: object) -> Row:
    """Return the answer of a command, in JSON."""
    return dict(json.loads(child("-m", "scanops", *words, "--json", variables=variables)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack the kernels; 1 where an archive is larger than the documentation says."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("slugs", nargs="*", help="the committed kernels by default")
    options.add_argument("-o", "--output", type=result_file, help="write the figures here as JSON")
    given = options.parse_args(arguments)
    slugs = given.slugs or sorted(path.stem for path in (ROOT / "generated").glob("*.cu"))
    with tempfile.TemporaryDirectory() as folder:
        found = {slug: pack_kernel(slug, Path(folder, slug)) for slug in slugs}
    median, most = statistics.median(found.values()), max(found.values())
    print(f"{len(found)} kernels for 8 targets each: median {median:,.0f} bytes, most {most:,}")
    figures: Row = {"targets": TARGETS.split(","), "median_bytes": median, "bytes": found, "ok": most <= MOST_BYTES}
    write(given.output, figures)
    return 0 if figures["ok"] else 1
