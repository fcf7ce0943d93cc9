"""``scanops record``: run a program and write down the specs it uses."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import click
from rich.text import Text

from scanops import environment
from scanops.cli.output import Command, FilePath, console, print_json
from scanops.errors import MissingRequirement
from scanops.specfile import check_writable, read

__all__ = ["command"]


@click.command(
    "record",
    cls=Command,
    example="scanops record -o specs.toml -- python train.py\nscanops precompile specs.toml --targets sm_90 -o pack",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--output",
    type=FilePath(),
    default=Path("specs.toml"),
    show_default=True,
    help="The spec file to add to.",
)
@click.argument("program", metavar="-- PROGRAM [WORD]...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(output: Path, program: tuple[str, ...], as_json: bool) -> None:
    """Run a program and write the specs of the kernels it asks for to a spec file.

    All its processes are recorded, and added to what the file holds: run several programs into one file. Exits as the
    program does. SCANOPS_RECORD=FILE does the same without this command.
    """
    path = output.expanduser().absolute()
    check_writable(path)  # what is wrong with it shows before an hour's run
    code = _run(program, path, quiet=as_json)
    recorded = read(path) if path.exists() else {}
    if as_json:
        kernels = [{"spec": spec.slug, "target": target, "count": n} for (spec, target), n in recorded.items()]
        print_json({"ok": code == 0, "exit_code": code, "file": str(path), "kernels": kernels})
    else:
        words = f"{len(recorded)} kernels in {path}" if recorded else "no kernel was asked for: nothing is written"
        console(stderr=True).print(Text(f"scanops record: {words}"), soft_wrap=True)
    click.get_current_context().exit(code)


def _run(program: tuple[str, ...], path: Path, *, quiet: bool) -> int:
    """The program's exit code, 128 and the signal for one that was killed."""
    changed = environment.inherited(SCANOPS_RECORD=str(path))
    try:
        # Standard output is for our JSON, if that is wanted.
        process = subprocess.Popen(program, env=changed, stdout=sys.stderr.fileno() if quiet else None)
    except OSError as problem:
        raise MissingRequirement(
            f"run {program[0]}", allowed="a program that can be started", value=str(problem), hint="check its name"
        ) from problem
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # the terminal sends it to the program, too, which decides
            process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
