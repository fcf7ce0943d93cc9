"""``scanops demo``: the five scans, from request to checked result."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.text import Text

from scanops.cli.output import Command, console, print_json, working

if TYPE_CHECKING:
    from scanops.artifact import Resources
    from scanops.demo import Check

__all__ = ["command"]


@click.command("demo", cls=Command, example="scanops demo\nscanops demo --json > demo.json")
def command(as_json: bool) -> None:
    """Generate, build, run and check the five scans the project began with.

    With a GPU: at 32768 x 32768 in float32, timed against a copy. Without one: emulated at small and odd sizes and, if
    there is nvcc, with the registers and spills of the full-size kernels. Results are checked against float64.
    """
    with working("importing torch"):
        from scanops.demo import device_name, shape_text, steps

    device, todo = device_name(), steps()
    checks: list[Check] = []
    if not as_json:
        _say(device)
    for step in todo:
        with working(f"{step.scan.title}: {shape_text(step.shape)}"):
            check = step.run()
        if not as_json:
            _print(check, first=not any(made.scan is check.scan for made in checks))
        checks.append(check)
    ok = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": ok, "device": device, "checks": [_fields(check) for check in checks]})
    else:
        _say("")
        _say(_verdict(checks), style="bold green" if ok else "bold red")
    click.get_current_context().exit(0 if ok else 1)


def _say(text: str, style: str = "") -> None:
    console().print(Text(text, style=style), soft_wrap=True)


def _print(check: Check, *, first: bool) -> None:
    from scanops.demo import shape_text

    kernel, scan = check.kernel, check.scan
    if first:
        _say(f"\n{scan.title}: {scan.call}", style="bold")
        for target, used in check.resources.items():
            _say(f"  {target:<7} {check.compiled[target].spec}: {_resources(used)}")
    _say(f"  {shape_text(check.shape)}")
    _say(f"    spec    {kernel.spec}")
    _say(f"    plan    {kernel.plan.describe()}")
    _say(f"            {kernel.plan.why}")
    _say(f"    source  {kernel.source_path}")
    _say(f"    build   {kernel.build_seconds:.2f} s{', found in the store' if check.found else ''}")
    if check.timing is not None:
        time = check.timing
        _say(f"    time    {time.milliseconds:.3f} ms, {time.copy_fraction:.3f} of the speed of a copy")
    judged = "ok" if check.ok else "WRONG"
    compared = f"error {check.max_error:.1e} of the running magnitude, limit {check.limit:.1e}"
    _say(f"    check   {judged}: {compared}", style="green" if check.ok else "bold red")


def _resources(used: Resources) -> str:
    spilled = (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0)
    spills = f"{spilled} bytes of spills" if spilled else "no spills"
    return f"{used.registers} registers, {used.shared_bytes} bytes of shared memory, {spills}"


def _verdict(checks: list[Check]) -> str:
    scans = {check.scan.title: True for check in checks}
    for check in checks:
        scans[check.scan.title] &= check.ok
    right = f"{sum(scans.values())} of {len(scans)} scans right, {len(checks)} checks against float64"
    slowest = min((check.timing.copy_fraction for check in checks if check.timing), default=None)
    return right + (f", each at {slowest:.2f} of the speed of a copy or more." if slowest is not None else ".")


def _fields(check: Check) -> dict[str, object]:
    kernel, timing = check.kernel, check.timing
    return {
        "scan": check.scan.title,
        "call": check.scan.call,
        "shape": list(check.shape),
        "spec": kernel.spec.slug,
        "target": kernel.target,
        "plan": kernel.plan.describe(),
        "why": kernel.plan.why,
        "source": str(kernel.source_path),
        "build_seconds": kernel.build_seconds,
        "found": check.found,
        "ok": check.ok,
        "max_error": check.max_error if math.isfinite(check.max_error) else None,
        "limit": check.limit,
        "resources": {
            target: {"spec": check.compiled[target].spec.slug, **asdict(used)}
            for target, used in check.resources.items()
        },
        "milliseconds": timing.milliseconds if timing else None,
        "copy_milliseconds": timing.copy_milliseconds if timing else None,
        "copy_fraction": timing.copy_fraction if timing else None,
    }
