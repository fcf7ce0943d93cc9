"""The command line. Files here parse and print; what they call is in the modules of the same names above."""

from __future__ import annotations

import click

from scanops._version import __version__
from scanops.cli import (
    bench,
    build,
    demo,
    doctor,
    explain,
    export,
    generate,
    listing,
    pack,
    plan,
    precompile,
    prune,
    record,
    tune,
    unpack,
    verify,
)

__all__ = ["main"]


@click.group("scanops", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="scanops", message="%(prog)s %(version)s")
def main() -> None:
    """Prefix scans for PyTorch, as CUDA kernels generated for the request.

    Every command takes --json. Exit codes: 0 done, 1 failed, 2 a request that is wrong.
    """


_COMMANDS = (
    *(module.command for module in (generate, export, plan, build, demo, doctor, bench, tune, record, precompile)),
    *(pack.command, unpack.command, verify.command, listing.command, listing.info, explain.command, prune.command),
)

for _command in _COMMANDS:
    main.add_command(_command)
