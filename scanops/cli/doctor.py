"""``scanops doctor``: what this machine has, what it lacks, and what to type."""

from __future__ import annotations

import click

from scanops.cli.output import Command, print_json, say, working
from scanops.diagnosis.doctor import Report, examine

__all__ = ["command"]

_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


@click.command("doctor", cls=Command, example="scanops doctor\nscanops doctor --json > machine.json")
def command(as_json: bool) -> None:
    """Show what this machine has and lacks for scanops.

    Says what to type for anything that is missing or broken, and lists the environment variables. Exits with 0 when
    scans can run here in some way and nothing is broken; something that is merely missing is no failure.
    """
    with working("examining this machine"):
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
            {"name": each.name, "status": each.status, "summary": each.summary, "next": each.next or None, **each.facts}
            for each in report.findings
        ],
        "variables": [
            {"name": row.name, "value": value, "default": row.default, "meaning": row.meaning}
            for row, value in report.variables
        ],
    }


def _print(report: Report) -> None:
    for finding in report.findings:
        say(f"{finding.status:<8} {finding.name}: {finding.summary}", style=_STYLES[finding.status])
        if finding.next:
            say(f"         -> {finding.next}")
    say("")
    for row, value in report.variables:
        say(f"{row.name}={value}" if value else f"{row.name} (default: {row.default})")
        say(f"    {row.meaning}")
    say("\n" + report.verdict, style="bold")
