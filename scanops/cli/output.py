"""What commands take and print: specs, text for people, JSON for programs, errors in four parts, exit codes.

Standard output carries the result and nothing else; progress and errors go to standard error. Exit codes: 0 success,
1 failure, 2 invalid arguments, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from scanops import environment
from scanops.build_request import Resources
from scanops.codegen.spec import ScanSpec
from scanops.environment import AUTO, BUILDERS
from scanops.errors import ScanopsError, UnsupportedRequest, by_reason
from scanops.specfile import load

LINES = "Lines of the tensor to plan for; by default as many as fill the GPU."
F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130  # the exit code after Ctrl-C: 128 and the number of SIGINT, as shells have it


class Answer(NamedTuple):
    """The result of a command: what ``--json`` prints, the lines for people, some with a style, and the exit code."""

    facts: Mapping[str, object]
    lines: Iterable[str | tuple[str, str]] = ()
    code: int = 0


class Command(click.Command):
    """A command that returns an Answer: with ``--json``, an example in its help, and typed errors without traceback."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epilog = "\n".join(("\b", "Example:", *(f"  {line}" for line in example.splitlines())))
        self.params.append(
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                expose_value=False,
                callback=lambda context, _, value: context.meta.update({__name__: value}),
                help="Print JSON on standard output, and nothing else.",
            )
        )

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the words. Errors are reported as in ``invoke``; ``--json`` counts anywhere before ``--``."""
        wanted = "--json" in itertools.takewhile(lambda word: word != "--", args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except (click.UsageError, ScanopsError) as problem:
            if isinstance(problem, click.UsageError) and not wanted:
                raise
            raise click.exceptions.Exit(_report(problem, wanted)) from problem

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and print its answer, or its error, or that Ctrl-C ended it. Exit with its code."""
        try:
            answer: Answer = super().invoke(ctx)
            if as_json():
                print_json({"ok": answer.code == 0, **answer.facts})
            else:
                for line in answer.lines:
                    say(*((line,) if isinstance(line, str) else line))
            ctx.exit(answer.code)
        except (click.UsageError, ScanopsError, KeyboardInterrupt, ModuleNotFoundError) as problem:
            foreign = isinstance(problem, ModuleNotFoundError) and problem.name != "torch"
            if foreign or (isinstance(problem, click.UsageError) and not as_json()):
                raise
            ctx.exit(_report(problem, as_json()))


def as_json() -> bool:
    """Return whether the command that runs was given ``--json``."""
    return bool(click.get_current_context().meta.get(__name__))


class FilePath(click.Path):
    """A file to write; - is refused, and so makes no file of that name."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of a file to write."""
        if os.fspath(value) == "-":
            self.fail("- is not a file: name one (./- if it is called that); leave it out to print.", param, ctx)
        return super().convert(value, param, ctx)


class Spec(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.2 and later only
    """A spec by its short name."""

    name = "spec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ScanSpec:
        """Return the ScanSpec of a short name, whose expressions ``--import`` has read before."""
        return ScanSpec.parse(value)


class SpecOrFile(Spec):
    """A spec by its short name, or a spec file by a name that ends in .toml."""

    name = "spec or file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the ScanSpec of a short name, or the SpecFile."""
        return load(Path(value)) if str(value).endswith(".toml") else super().convert(value, param, ctx)


def builder_option(command: F) -> F:
    """Give a command ``--builder``: who builds kernels for GPUs."""
    meaning = "The builder of GPU kernels; nvrtc makes cubins. Default: SCANOPS_BUILDER, or the first that works."
    return click.option("--builder", type=click.Choice(BUILDERS), default=AUTO, help=meaning)(command)


def import_option(command: F) -> F:
    """Give a command ``--import FILE``: a spec file whose expressions are read before specs are."""
    return click.option(
        "--import",
        metavar="FILE",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=lambda context, option, names: [load(Path(name)) for name in names],
        help="Read a spec file with expressions, so that their short names are known; may be repeated.",
    )(command)


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Print lines, in a style such as "bold red" on a terminal. Control characters are escaped."""
    lines = "\n".join(escape(line) for line in text.split("\n"))
    colour = style.removeprefix("bold").strip() or None
    wanted = False if environment.read_variable("NO_COLOR") else None  # None: where there is a terminal
    click.secho(lines, err=stderr, color=wanted, fg=colour, bold=style.startswith("bold") or None)


def escape(text: str) -> str:
    r"""Return one line with every character that is not printable escaped: ``\x1b`` for ESC.

    Manifests and file names come from others: printed as they are, they could move the cursor or hide text.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def working(what: str) -> None:
    """Say on standard error what begins, where that is a terminal."""
    if sys.stderr.isatty():
        say(f"{what} ...", stderr=True)


def progress(title: str = "") -> Callable[[str, int, int | None], object]:
    """Return a function of (what was done, how many are done, of how many), which reports on standard error.

    It prints a line every ten seconds, on a terminal every second, and a last one.
    """
    every, last = (1.0 if sys.stderr.isatty() else 10.0), time.monotonic()

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last > every or done == total:
            last = time.monotonic()
            say(f"{done} of {total}: {title}{what}", stderr=True)

    return report


def print_json(value: object) -> None:
    """Print one JSON document on standard output. NaN is not JSON: callers write None."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def resources_text(used: Resources) -> str:
    """Return registers, shared memory and spills of a kernel in words."""
    # Stores and loads of spilled registers come in pairs, more or less: their sum is the traffic.
    spilled = (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0)
    spills = f"{spilled} bytes of spills" if spilled else "no spills"
    return f"{used.registers} registers, {used.shared_bytes} bytes of shared memory, {spills}"


def print_errors(errors: Iterable[tuple[str, ScanopsError]]) -> None:
    """Print (``"SLUG for TARGET"``, error) pairs on standard error; an error that kernels share is printed once."""
    for error, names in by_reason(errors):
        _print_error(error)
        if len(names) > 1:
            say(f"  {'of:':<9}{', '.join(names)}", stderr=True)


def target_option(default: str) -> Callable[[F], F]:
    """Return the option for targets, of the commands that build for several: repeated, or separated by commas."""

    def names(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.strip() for words in given for name in words.split(",") if name.strip())

    said = "Architectures to build for, such as sm_80,sm_90, or cpu for the emulator; may be repeated."
    words = ("--target", "--targets", "targets")
    return click.option(*words, multiple=True, metavar="NAMES", callback=names, help=f"{said} {default}")


def error_fields(error: ScanopsError) -> dict[str, str]:
    """Return the parts of an error for JSON."""
    parts = {"asked": error.asked, "allowed": error.allowed, "value": str(error.value), "next": error.hint}
    return {"kind": type(error).__name__, **parts}


def exit_code(error: ScanopsError) -> int:
    """Return 2 for a request that is wrong on every machine, 1 for one that failed on this one."""
    return 2 if isinstance(error, UnsupportedRequest) else 1


def _print_error(error: ScanopsError, kind: str = "") -> None:
    """Print the four parts on standard error, the first one red on a terminal."""
    say(f"{kind or type(error).__name__}: {error.asked}", "bold red", stderr=True)
    for label, part in (("allowed", error.allowed), ("got", str(error.value)), ("next", error.hint)):
        # The output of a compiler has many lines; they stay below their label.
        say(f"  {label + ':':<9}" + part.replace("\n", "\n" + " " * 11), stderr=True)


def _report(problem: BaseException, json_wanted: bool) -> int:
    """Print an error as text on standard error or as JSON on standard output. Return the exit code."""
    context = getattr(problem, "ctx", None) or click.get_current_context(silent=True)
    command = context.command_path if context else "scanops"
    kind, code, asked = type(problem).__name__, 1, f"run `{command}`"
    if isinstance(problem, ScanopsError):
        error, code = problem, exit_code(problem)
    elif isinstance(problem, click.UsageError):
        kind, code = "UsageError", problem.exit_code
        usage = " ".join([command, *context.command.collect_usage_pieces(context)]) if context else command
        error = ScanopsError(asked, allowed=usage, value=problem.format_message(), hint=f"{command} --help")
    elif isinstance(problem, KeyboardInterrupt):
        code, hint = INTERRUPTED, "run it again: kernels that are in the store are not built again"
        error = ScanopsError(asked, allowed="to run to its end", value="Ctrl-C (SIGINT)", hint=hint)
    else:
        kind, hint = "MissingRequirement", "pip install torch; `scanops generate` and `scanops build` work without it"
        error = ScanopsError(asked, allowed="a Python environment with torch", value="no module named torch", hint=hint)
    if json_wanted:
        print_json({"ok": False, "error": {**error_fields(error), "kind": kind}})
    elif code == INTERRUPTED:
        say("interrupted", stderr=True)
    else:
        _print_error(error, kind)
    return code
