"""``scanops demo``: small scans that run here, compared with float64."""

from __future__ import annotations

import math
import shutil
from contextlib import nullcontext
from typing import Any

import click

from scanops import environment
from scanops.builders.toolchain import find_cxx
from scanops.cli.output import Answer, Command, working
from scanops.emulator import emulate
from scanops.forks import import_late

__all__ = ["command"]

# Operator, dimension and an option
_DEMO = (("prod", 1, ""), ("prod", 0, ""), ("sum", 1, "reverse"), ("sum", 1, "mask"), ("sum", 1, "exclusive"))


@click.command("demo", cls=Command, example="scanops demo")
def command() -> Answer:
    """Run five small scans and compare them with float64.

    They run on the GPU; where there is none they are emulated on the CPU, or without a C++ compiler run by PyTorch's
    operators. In a checkout, `python -m examples.demo` runs them at full size, times them against a copy and shows
    their plans. Exits with 1 when a result is wrong.
    """
    working("importing torch")
    torch, scan, scans = import_late("torch"), import_late("scanops.api").scan, import_late("scanops.fallback.scans")
    gpu, checks = torch.cuda.is_available(), []
    emulated = not gpu and bool(environment.read_variable("SCANOPS_CXX") or shutil.which(environment.cxx()))
    device = torch.cuda.get_device_name() if gpu else "no GPU: run by PyTorch's operators, as there is no C++ compiler"
    if emulated:
        device = f"no GPU: emulated on the CPU, built by {find_cxx().version}"
    x = (1 + torch.randn(33, 1000, generator=torch.Generator().manual_seed(1)) / 100).to("cuda" if gpu else "cpu")
    for op, dim, word in _DEMO:
        called = f"cum{op}, dim {dim}" + (f", {word}" if word else "")
        options: dict[str, Any] = {word: x > 1 if word == "mask" else True} if word else {}
        with emulate() if emulated else nullcontext():
            error = scans.max_error(scan(x, op, dim, **options), x, op, dim, **options)
        limit = scans.limit(op, x.shape[dim])
        found = error if math.isfinite(error) else None
        checks.append({"scan": called, "ok": error <= limit, "max_error": found, "limit": limit})
    ok = all(row["ok"] for row in checks)
    lines = [f"  {row['scan']}: {'right' if row['ok'] else 'WRONG'}" for row in checks]
    return Answer({"device": device, "checks": checks}, [device, *lines], code=0 if ok else 1)
