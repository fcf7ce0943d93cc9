from __future__ import annotations
import click
from scanops.cli.output import Command
@click.command("demo", cls=Command, example="x")
def command(as_json: bool) -> None:
    pass
