"""Rendering: a plan to CUDA text through the template of its strategy, below a banner.

A template prints what only the generator knows: types, constants, the operator's functions, parameters, which headers
there are, and the kernel. Headers, in templates/headers, are CUDA C++ over these names: see headers.py.
"""

from __future__ import annotations

import encodings.unicode_escape  # noqa: F401  # which jinja2 imports late, while other threads may fork
import functools
import hashlib
import re
from collections.abc import Iterable

import jinja2

from scanops.codegen.abi import ABI
from scanops.codegen.headers import inline_headers, select_constants, select_headers
from scanops.codegen.lines import key_for
from scanops.codegen.planner import STRATEGIES, plan_kernel
from scanops.codegen.spec import ScanSpec, spec_of
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET, target_named

SHORT = 52  # characters of a value that is returned on the line of its function
HOST_SIDE = "#ifndef __CUDACC_RTC__  // host side"  # begins the launcher's part of a text


def generate(spec: ScanSpec | str, target: str = DEFAULT_TARGET, *, lines: int | None = None) -> str:
    """Return the CUDA source of the kernel for ``spec`` on ``target``: a complete translation unit.

    It needs neither a GPU nor a compiler, and returns the same text on every machine. The text includes only the CUDA
    runtime's header; nvcc, NVRTC and, against the emulator's header, g++ compile it.

    Args:
        spec: what to compute, a ScanSpec or its short name.
        target: an architecture such as ``"sm_90"``, or ``"cpu"``.
        lines: the number of lines that the kernel is planned for, by default as many as fill the GPU. It serves any.

    Returns:
        The text of the kernel.

    Raises:
        UnsupportedRequest: the target is not in the table.

    Example:
        >>> text = generate(ScanSpec(op="sum", dtype="float32", length=1024))
        >>> "sum_f32_n1024_block(" in text
        True
    """
    spec = spec_of(spec)
    return inline_headers(render(plan_kernel(key_for(spec, target_named(target).name, lines))))


def _name_tuned(plan: Plan) -> str:
    """Return the names of the numbers that measurements chose, empty where a rule computed all."""
    return ", ".join(STRATEGIES[plan.strategy].free) if plan.origin.startswith("measured:") else ""


def render(plan: Plan, launcher: str = "") -> str:
    """Return the CUDA source of a plan, banner included; with a ``launcher`` in place of the host side, to hand over.

    Then headers are in place, and the banner has no digest, as it is that of the text of a library.
    """
    jinja = environment()
    body, digest = _tidy(jinja.get_template(plan.template).render(plan=plan)), None
    if launcher:
        body = inline_headers(body.partition(HOST_SIDE)[0]) + launcher
    else:
        digest = hashlib.sha256(inline_headers(body).encode()).hexdigest()[:16]
    return jinja.get_template("banner.j2").render(plan=plan, digest=digest, tuned=_name_tuned(plan)) + body


@functools.cache
def environment() -> jinja2.Environment:
    """The Jinja2 environment of the templates: an undefined name is an error, never an empty string."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("scanops.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is CUDA, not HTML
    )
    environment.filters |= {"inset": _inset, "each": _each, "returned": _return}
    environment.filters |= {"headers_for": select_headers, "named_in": select_constants}
    environment.globals["abi"] = ABI
    return environment


def _tidy(text: str) -> str:
    """Return a text without lines of empty expressions, and with one blank line around headers and the kernel."""
    text = "".join(line + "\n" for line in text.splitlines() if line == "" or line.strip())
    text = re.sub(r'^(?=#include "headers/|extern "C" __global__)', "\n", text, flags=re.MULTILINE)
    text = re.sub(r'^(#include "headers/.*\n)(?!\n*#include)', r"\1\n", text, flags=re.MULTILINE)
    text = re.sub(r'^(#include "headers/.*\n)\n+(?=#include "headers/)', r"\1", text, flags=re.MULTILINE)
    return re.sub("\n{3,}", "\n\n", text).rstrip("\n") + "\n"  # where a template left something out


def _inset(text: str, columns: int) -> str:
    """The output of a macro without surrounding blank lines, all lines but the first and pragmas indented."""
    lines = text.strip().split("\n")
    return "\n".join([lines[0], *(line if line[:1] in ("", "#") else " " * columns + line for line in lines[1:])])


def _return(value: str) -> str:
    """The body of a function that returns a value: on the function's line if it is short."""
    return f"{{\n    return {value};\n}}" if "\n" in value or len(value) > SHORT else f"{{ return {value}; }}"


def _each(these: Iterable[object], text: str, between: str = "\n") -> str:
    """A text for each operand or output, as C lists and declarations need it; ``text`` is a format of one."""
    return between.join(text.format(one) for one in these)
