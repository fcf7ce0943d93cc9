"""``python -m scanops.codegen``: print a kernel, list the tables, render ``generated/``. Needs Jinja2 and no torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scanops.codegen.dtypes import DTYPES, scan_result
from scanops.codegen.golden import COMMAND, differences, golden_files
from scanops.codegen.operators import OPERATORS
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET, TARGETS
from scanops.errors import ScanopsError, UnsupportedRequest

BANNER = "// scanops:"  # how a file starts that may be removed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 when ``--check`` finds something stale; 2 for a request that makes no sense."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.check and not options.golden:
        parser.error("--check goes with --golden")
    try:
        if options.golden:
            directory = _directory(options.directory)
            return _check(directory) if options.check else _write(directory)
        print(_tables() if options.list else generate(ScanSpec.parse(options.slug), options.target), end="")
    except ScanopsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scanops.codegen", description="From a spec to CUDA text.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("slug", nargs="?", help="print this kernel, for example sum-f32-n32768-mask_b8-reverse")
    what.add_argument("--list", action="store_true", help="print the operator, dtype and target tables")
    what.add_argument("--golden", action="store_true", help="render the committed kernels again")
    parser.add_argument("--target", default=DEFAULT_TARGET, help="of the printed kernel; default %(default)s")
    parser.add_argument(
        "--check", action="store_true", help="with --golden: write nothing, exit 1 if something is stale"
    )
    parser.add_argument("--directory", type=Path, help="with --golden: where the kernels are; default ./generated")
    return parser


def _directory(chosen: Path | None) -> Path:
    """``chosen``, else ./generated, which must be there: a run from another folder leaves nothing behind."""
    directory = chosen or Path("generated")
    if not directory.is_dir():
        raise UnsupportedRequest(
            "the committed kernels",
            allowed="a directory that exists",
            value=str(directory),
            hint="run this from the root of a checkout, or name its generated/ with --directory",
        )
    return directory


def _found(directory: Path) -> dict[str, str]:
    """Texts of the files that this command writes or removes; anything else in the directory is not its business."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.cu"))}
    texts = {name: text for name, text in texts.items() if text.startswith(BANNER)}
    readme = directory / "README.md"
    return {**texts, **({readme.name: readme.read_text(encoding="utf-8")} if readme.is_file() else {})}


def _write(directory: Path) -> int:
    wanted, found = golden_files(), _found(directory)
    for name, text in wanted.items():
        if found.get(name) != text:
            (directory / name).write_text(text, encoding="utf-8", newline="\n")
            print(f"wrote {name}")
    for name in sorted(found.keys() - wanted.keys()):
        (directory / name).unlink()
        print(f"removed {name}")
    print(f"{len(wanted)} files in {directory} are current")
    return 0


def _check(directory: Path) -> int:
    messages = differences(_found(directory))
    if messages:
        print("\n".join(messages), f"\n{len(messages)} files in {directory} are not current; run: {COMMAND}")
    return 1 if messages else 0


def _tables() -> str:
    operators = [(row.name, " ".join(row.kinds), row.formula) for row in tuple(OPERATORS.values())]
    results = {row: scan_result(row) for row in DTYPES.values()}
    dtypes = [(row.name, row.tag, str(row.bytes), out.name, out.accumulator) for row, out in results.items()]
    targets = [(row.name, str(row.multiprocessors), str(row.threads)) for row in TARGETS.values()]
    return "\n".join(
        (
            _table(("operator", "output", "formula"), operators),
            _table(("dtype", "tag", "bytes", "output", "scanned in"), dtypes),
            _table(("target", "multiprocessors", "threads each"), targets),
        )
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
