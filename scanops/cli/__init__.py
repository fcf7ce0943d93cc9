"""The command line. Files here parse options and print results; the work is done by the packages they import."""

from __future__ import annotations

import click

from scanops._version import __version__
from scanops.cli import build, demo, doctor, generate, plan, store, tune

__all__ = ["main"]


@click.group("scanops", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="scanops", message="%(prog)s %(version)s")
def main() -> None:
    """Prefix scans for PyTorch, as CUDA kernels generated for the request.

    Every command takes --json. Exit codes: 0 success, 1 failure, 2 invalid arguments, 130 Ctrl-C.
    """


for _command in (
    *(generate.generate, generate.export, plan.command, build.build, build.record, build.precompile),
    *(store.pack, store.unpack, store.store, tune.command, demo.command, doctor.command),
):
    main.add_command(_command)
