"""What a kernel is known by: the text it is built from, and the key under which indexes find it without that text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanops.artifact import BuildRequest
from scanops.codegen.operators import Operator, is_built_in, operator_named
from scanops.codegen.spec import ScanSpec
from scanops.forks import NO_FORK
from scanops.store.fingerprint import fingerprint
from scanops.tuning.choice import Choice, plan_of, planned

if TYPE_CHECKING:
    from scanops.codegen.plan import Plan

__all__ = ["expressions", "plan_for", "request_of", "store_key"]


def store_key(spec: ScanSpec, target: str, measured: Choice | None = None) -> str | None:
    """What the indexes of store and packs know a kernel by; None for an operator that is not in the table."""
    if not is_built_in(operator_named(spec.op)):
        return None
    key = f"{spec.slug} {target} {fingerprint(target)}"
    return f"{key} {measured.entry.digest}" if measured else key  # a file that changed leads to another kernel


def request_of(spec: ScanSpec, target: str, measured: Choice | None = None) -> BuildRequest:
    """What the store is asked for: the rendered text, and what it is compiled for."""
    row = operator_named(spec.op)
    written = "" if is_built_in(row) else expressions(row)
    with NO_FORK:
        from scanops.codegen.source import render

        source = render(plan_for(spec, target, measured))
    return BuildRequest(name=spec.slug, source=source, target=target, written=written)


def expressions(operator: Operator) -> str:
    """The C++ of an operator, a field a line: for a message about it."""
    parts = {name: getattr(operator, name) for name in ("lift", "combine", "identity", "project")}
    return f"operator {operator.name}:\n" + "".join(f"    {name}={text!r}\n" for name, text in parts.items())


def plan_for(spec: ScanSpec, target: str, measured: Choice | None) -> Plan:
    from scanops.codegen.plan import make_plan  # a kernel in the store needs no plan and no template

    return make_plan(spec, planned(target)) if measured is None else plan_of(measured, spec)
