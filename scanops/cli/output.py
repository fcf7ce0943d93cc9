"""What commands print and how they end: text for people, JSON for programs, errors in four parts, exit codes.

Standard output carries the answer and nothing else; progress and errors go to standard error. Exit codes: 0 what was
asked is done, 1 it failed, 2 the request itself is wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scanops.artifact import Resources
from scanops.errors import BuildFailure, ScanopsError, UnsupportedRequest

__all__ = [
    "Command",
    "FilePath",
    "console",
    "error_fields",
    "exit_code",
    "print_error",
    "print_errors",
    "print_json",
    "print_table",
    "resources_text",
    "say",
    "working",
]

INTERRUPTED = 130  # the exit code after Ctrl-C: 128 and the number of SIGINT, as shells have it
_PIPED_WIDTH = 10_000  # columns; a file or a pipe has no edge to wrap at


class Command(click.Command):
    """A command with ``--json``, an example in its help, and no traceback for an error scanops raises on purpose."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epilog = "\n".join(("\b", "Example:", *(f"  {line}" for line in example.splitlines())))
        self.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON on standard output, and nothing else.")
        )

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        as_json = "--json" in itertools.takewhile(lambda word: word != "--", args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as problem:
            if not as_json:
                raise
            raise _said(problem) from problem

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as problem:
            if not ctx.params["as_json"]:
                raise
            raise _said(problem) from problem
        except KeyboardInterrupt:
            _end_interrupted(as_json=ctx.params["as_json"])
            ctx.exit(INTERRUPTED)
        except ScanopsError as problem:
            error = problem
        except ModuleNotFoundError as problem:
            if problem.name != "torch":
                raise
            error = _no_torch(ctx.command_path)
        if ctx.params["as_json"]:
            print_json({"ok": False, "error": error_fields(error)})
        else:
            print_error(error)
        ctx.exit(exit_code(error))


class FilePath(click.Path):
    """A file to write. With ``dash``, - is standard output; else it is refused: nobody wants a file of that name."""

    def __init__(self, *, dash: bool = False) -> None:
        super().__init__(dir_okay=False, path_type=Path, allow_dash=True)
        self._dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if os.fspath(path) != "-":
            return path
        if self._dash:
            return None
        self.fail("- is no file: name one, and ./- if it is called that; --json prints on standard output.", param, ctx)


def console(*, stderr: bool = False) -> Console:
    """A console on standard output or error that honours NO_COLOR and wraps on a terminal only."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, markup=False, width=None if stream.isatty() else _PIPED_WIDTH)


def working(what: str) -> AbstractContextManager[object]:
    """A spinner on standard error while something takes its time; nothing where there is no terminal."""
    screen = console(stderr=True)
    return screen.status(Text(what)) if screen.is_terminal else nullcontext()


def say(text: str, style: str = "") -> None:
    """Print a line on standard output, styled on a terminal; the terminal wraps it, so that it can be copied."""
    console().print(Text(text, style=style), soft_wrap=True)


def resources_text(used: Resources) -> str:
    """Registers, shared memory and spills of a kernel in words."""
    # Stores and loads of spilled registers come in pairs, more or less: their sum is the traffic.
    spilled = (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0)
    return f"{used.registers} registers, {used.shared_bytes} bytes of shared memory, " + (
        f"{spilled} bytes of spills" if spilled else "no spills"
    )


def print_table(table: Table) -> None:
    """A table on standard output, without the blanks at the end of a line that a file would keep."""
    screen = console()
    with screen.capture() as captured:
        screen.print(table)
    text = captured.get()
    click.echo(text if screen.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines()), nl=False)


def print_json(value: object) -> None:
    """One JSON document. NaN is not JSON: callers say None."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def print_error(error: ScanopsError) -> None:
    """The four parts on standard error, the first one red on a terminal."""
    heading = Text.assemble((f"{type(error).__name__}: ", "bold red"), (error.asked, "bold"))
    screen = console(stderr=True)
    screen.print(heading, soft_wrap=True)
    for label, part in (("allowed", error.allowed), ("got", str(error.value)), ("next", error.hint)):
        # A compiler's words have many lines; they stay below their label.
        screen.print(Text(f"  {label + ':':<9}" + part.replace("\n", "\n" + " " * 11)), soft_wrap=True)


def print_errors(errors: Iterable[tuple[str, ScanopsError]]) -> None:
    """The same for errors of kernels that are named: what several kernels have in common once."""
    names: dict[str, list[str]] = {}
    first: dict[str, ScanopsError] = {}
    for name, error in errors:
        names.setdefault(str(error), []).append(name)
        first.setdefault(str(error), error)
    for words, error in first.items():
        print_error(error)
        if len(names[words]) > 1:
            console(stderr=True).print(Text(f"  {'of:':<9}{', '.join(names[words])}"), soft_wrap=True)


def error_fields(error: ScanopsError) -> dict[str, str]:
    """An error as JSON."""
    return {
        "kind": type(error).__name__,
        "asked": error.asked,
        "allowed": error.allowed,
        "value": str(error.value),
        "next": error.hint,
    }


def exit_code(error: ScanopsError) -> int:
    """2 for a request that is wrong wherever it is made, 1 for one that failed here."""
    return 2 if isinstance(error, UnsupportedRequest) else 1


def _said(problem: click.UsageError) -> click.exceptions.Exit:
    """What click says of words that it does not understand, as JSON."""
    context = problem.ctx or click.get_current_context()
    command = context.command_path
    fields = {
        "kind": "UsageError",
        "asked": f"run `{command}`",
        "allowed": " ".join([command, *context.command.collect_usage_pieces(context)]),
        "value": problem.format_message(),
        "next": f"{command} --help",
    }
    print_json({"ok": False, "error": fields})
    return click.exceptions.Exit(problem.exit_code)


def _end_interrupted(*, as_json: bool) -> None:
    """Report Ctrl-C: as JSON on standard output, or in one word on standard error."""
    if not as_json:
        click.echo("interrupted", err=True)
        return
    fields = {
        "kind": "KeyboardInterrupt",
        "asked": f"run `{click.get_current_context().command_path}`",
        "allowed": "to run to its end",
        "value": "interrupted by Ctrl-C (SIGINT)",
        "next": "run it again: kernels that are in the store are not built again",
    }
    print_json({"ok": False, "error": fields})


def _no_torch(command: str) -> ScanopsError:
    return BuildFailure(
        f"run `{command}`",
        allowed="a Python environment with torch",
        value="no module named torch",
        hint="pip install torch; without it `scanops generate` and `scanops build --target sm_90` still work",
    )
