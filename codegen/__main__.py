"""``python -m scanops.codegen``: print a kernel, list the tables, render ``generated/`` and ``docs/``.

Needs Jinja2 and no torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scanops.codegen import docs
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
    if options.check and not (options.golden or options.docs):
        parser.error("--check goes with --golden or --docs")
    try:
        if options.docs:
            return _docs(_directory(options.directory, "docs"), options.check)
        if options.golden:
            directory = _directory(options.directory, "generated")
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
    what.add_argument("--docs", action="store_true", help="render the pages of the operator table again")
    parser.add_argument("--target", default=DEFAULT_TARGET, help="of the printed kernel; default %(default)s")
    parser.add_argument(
        "--check", action="store_true", help="with --golden or --docs: write nothing, exit 1 if something is stale"
    )
    parser.add_argument("--directory", type=Path, help="where they are; default ./generated, ./docs")
    return parser


def _directory(chosen: Path | None, name: str) -> Path:
    """``chosen``, else ./name, which must be there: a run from another folder leaves nothing behind."""
    directory = chosen or Path(name)
    if not directory.is_dir():
        raise UnsupportedRequest(
            f"the committed files of {name}/",
            allowed="a directory that exists",
            value=str(directory),
            hint=f"run this from the root of a checkout, or name its {name}/ with --directory",
        )
    return directory


def _docs(directory: Path, check: bool) -> int:
    """Write the pages that follow from the operator table, or say which are stale."""
    examples = {
        name: (directory / "examples" / f"{name}.py").read_text(encoding="utf-8")
        for name in docs.EXAMPLES
        if (directory / "examples" / f"{name}.py").is_file()
    }
    if len(examples) < len(docs.EXAMPLES):
        raise UnsupportedRequest(
            "the pages of docs/",
            allowed=", ".join(f"examples/{name}.py" for name in docs.EXAMPLES) + " below it",
            value=f"{directory}, with {', '.join(examples) or 'none'} of them",
            hint="name the docs/ of a checkout with --directory",
        )
    wanted = docs.docs_files(examples)
    pages = {path.relative_to(directory).as_posix() for path in (directory / "operators").glob("*.md")}
    stale = [
        name
        for name, text in wanted.items()
        if not (directory / name).is_file() or (directory / name).read_text(encoding="utf-8") != text
    ]
    left = sorted(pages - wanted.keys())
    if check:
        messages = [*(f"{name}: stale" for name in stale), *(f"{name}: nothing writes it" for name in left)]
        if messages:
            print("\n".join(messages), f"\nrun: {docs.COMMAND}")
        return 1 if messages else 0
    for name in stale:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(wanted[name], encoding="utf-8", newline="\n")
        print(f"wrote {name}")
    for name in left:
        (directory / name).unlink()
        print(f"removed {name}")
    print(f"{len(wanted)} pages in {directory} are current")
    return 0


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
