"""``scanops doctor``: what is there, what is missing, what to type."""

from __future__ import annotations

import click
from rich import box
from rich.table import Table
from rich.text import Text

from scanops.cli.output import Command, console, print_json, print_table, working
from scanops.diagnosis.doctor import Report, examine

__all__ = ["command"]

_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


@click.command("doctor", cls=Command, example="scanops doctor\nscanops doctor --json > machine.json")
def command(as_json: bool) -> None:
    """Show what this machine has and lacks for scanops.

    Says what to type for anything that is missing or broken, and lists the environment variables. Exits with 0 when
    scans can run here in some way and nothing is broken; something that is merely missing is no failure.
    """
    with working("looking"):
        report = examine()
    if as_json:
        print_json(_fields(report))
    else:
        _print(report)
    click.get_current_context().exit(0 if report.ok else 1)


def _fields(report: Report) -> dict[str, object]:
    return {
        "ok": report.ok,
        "verdict": report.verdict,
        "can": report.abilities,
        "checks": [
            {
                "name": finding.name,
                "status": finding.status,
                "summary": finding.summary,
                "next": finding.next or None,
                **finding.facts,
            }
            for finding in report.findings
        ],
        "variables": [
            {"name": row.name, "value": value, "default": row.default, "meaning": row.meaning}
            for row, value in report.variables
        ],
    }


def _print(report: Report) -> None:
    findings = Table.grid(padding=(0, 2))
    for _ in range(3):
        findings.add_column(overflow="fold")
    for finding in report.findings:
        findings.add_row(Text(finding.status, style=_STYLES[finding.status]), finding.name, finding.summary)
        if finding.next:
            findings.add_row("", "", Text(f"-> {finding.next}", style="cyan"))
    variables = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("variable", "value", "meaning"):
        variables.add_column(heading, overflow="fold")
    for row, value in report.variables:
        variables.add_row(row.name, value or f"({row.default})", row.meaning)
    print_table(findings)
    print_table(variables)
    console().print(Text(report.verdict, style="bold"), soft_wrap=True)
