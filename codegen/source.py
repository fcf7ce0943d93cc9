"""Rendering: a plan to CUDA text through the template of its strategy, below a banner.

A template prints the types, the operator's functions, the parameters and the kernel, and names the headers among which
the text finds the rest. Headers, in templates/headers, are C++ over named constants. As a linker takes from a library
what a program calls, ``link`` takes from headers the sections that declare names which are used.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jinja2

from scanops.codegen.abi import ABI
from scanops.codegen.headers import inline_headers, list_headers
from scanops.codegen.lines import key_for
from scanops.codegen.planner import STRATEGIES, plan_kernel
from scanops.codegen.spec import ScanSpec, spec_of
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET, target_named

WORD = re.compile(r"[A-Za-z_]\w*")
QUALIFIED = re.compile(r"(?:([A-Za-z_]\w*)::)?([A-Za-z_]\w*)")
NAMESPACE = re.compile(r"^namespace (\w+) \{$", re.MULTILINE)
SECTION = "//@"  # begins a line of a header: the names after it are declared from here to the next such line
HEADING = "// ----"  # begins a comment above sections
SHORT = 52  # characters of a value that is returned on the line of its function
HOST_SIDE = "#ifndef __CUDACC_RTC__  // host side"  # begins the launcher's part of a text


class Section(NamedTuple):
    """Lines of a header that are there if one of the names that they declare is used; without names, always."""

    space: str  # the namespace around it, if any
    names: tuple[str, ...]
    text: str


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
    """Return the CUDA source of a plan, banner included; a ``launcher`` replaces the host side of the text.

    Then the banner has no digest, as it is that of the text of a library.
    """
    jinja = environment()
    device, host_side, host = jinja.get_template(plan.template).render(plan=plan).partition(HOST_SIDE)
    body = link(device) + "\n" + host_side + host
    digest = None if launcher else hashlib.sha256(inline_headers(body).encode()).hexdigest()[:16]
    body = body.partition(HOST_SIDE)[0] + launcher if launcher else body
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
    environment.globals["abi"] = ABI
    return environment


def link(text: str) -> str:
    """Return the text with those sections of headers that declare names which the text after them uses.

    A line ``//@ names`` begins a section; one without names begins text that is always there. As a name is declared
    before it is used, one pass from the end is enough. A name of a namespace is used within it, or
    where it is qualified. Lines that begin sections are left out, and headings of nothing.
    """
    sections = list(_sections(text))
    declared = {(each.space, name) for each in sections for name in each.names}
    spaces = {each.space for each in sections if each.space}
    used = {("", name) for each in list_headers(text).values() for name in WORD.findall(each)}
    kept: list[str] = []
    below = False  # whether something below the next heading is kept
    for section in reversed(sections):
        is_heading = section.text.startswith(HEADING) and "\n" not in section.text.strip("\n")
        is_used = not section.names or any((section.space, name) in used for name in section.names)
        if (below if is_heading else is_used) and section.text.strip("\n"):
            below = not is_heading
            kept.append(section.text)
            code = " ".join(line.partition("//")[0] for line in section.text.splitlines())
            for qualifier, name in QUALIFIED.findall(code):
                if qualifier in spaces:
                    used.add((qualifier, name))
                else:  # of the namespace around the section, if that declares it
                    names = ((section.space, word) for word in (qualifier, name))
                    used.update(each if each in declared else ("", each[1]) for each in names)
    printed = "".join(_space_out(kept[::-1])).splitlines()
    linked = "".join(line + "\n" for line in printed if line == "" or line.strip())  # no line of an empty expression
    while "\n\n\n" in linked:  # where a template left something out
        linked = linked.replace("\n\n\n", "\n\n")
    return linked


def _sections(text: str) -> Iterator[Section]:
    """Yield the sections of a text, each with the namespace around it."""
    space = ""
    for section in ("\n" + text).split("\n" + SECTION):
        names, _, lines = section.partition("\n")
        if begin := NAMESPACE.search(lines):
            space = begin[1]
        yield Section(space, tuple(WORD.findall(names)), lines)
        if f"}}  // namespace {space}" in lines:
            space = ""


def _space_out(sections: list[str]) -> Iterator[str]:
    """Yield sections, with blank lines above headings and comments, and around what is longer than a line."""
    was_long, was_comment = False, True
    for section in sections:
        lines = section.strip("\n")
        is_long, is_heading = "\n" in lines, lines.startswith(HEADING)
        is_comment = all(line.startswith("//") for line in lines.split("\n"))  # of the section that follows
        yield "\n" * (is_heading or (not was_comment and (is_long or was_long or is_comment))) + lines + "\n"
        was_long, was_comment = is_long, is_comment


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
