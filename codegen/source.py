"""Rendering: a plan to CUDA text through the template of its strategy, below a banner."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable

import jinja2

from scanops.codegen.abi import ABI
from scanops.codegen.lines import few_for
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec, spec_of
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET

# A definition in the first column, with the comment lines above it: a function, a constant, a type, a macro. A function
# ends with the first line that begins with a brace, or, where text follows the opening brace, that ends with one. The
# one group that matched is the name.
DEFINITION = re.compile(
    r"""\n (?://(?![ ]----)[^\n]*\n)* (?:template[ ]<[^{;]*?>\n)? (?:
        __device__[ ][^{;]*?(\w+)\([^{;]*
            (?:\{(?:[ ](?:(?!//).)*?)?\}(?:[ ]*//[^\n]*)?|\{.*?\n\}) (?=\n)
      | constexpr[ ][^=;({]*?(?P<constant>\w+)[ ]=[^;]*;[^\n]*
      | (?:struct|union|enum)[ ][^{;]*?(\w+)[ ](?::[^{;]*)?(?:\{[^\n]*\}|\{.*?\n\});[^\n]*
      | typedef[ ][^{;]*?(\w+);[^\n]*
      | \#define[ ](\w+)(?:[^\n]*\\\n)*[^\n]*
    )""",
    re.DOTALL | re.VERBOSE,
)
COMMENT = re.compile(r"//[^\n]*")
WORD = re.compile(r"[A-Za-z_]\w*")
# What dropped definitions leave behind: a conditional group or a section with nothing in it.
EMPTY = re.compile(r"\n#ifdef[^\n]*\s*\n#endif(?=\n)|\n// ----[^\n]*(?=\n\s*\n// ----)")
# Each begins with a line's end, which the search finds fast.
INDENTED = re.compile(r"\n +(?=#pragma|\n)")
BLANK_LINES = re.compile(r"\n\n\n+")
OPENED = re.compile(r"(\n(?:// ----|#ifdef|namespace)[^\n]*\n)\n+")  # blank lines at the top of a section or group
CLOSED = re.compile(r"\n\n+(?=#endif|\})")  # and at its bottom
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
    return render(make_plan(spec, target, few_for(spec, target, lines)))


def render(plan: Plan, launcher: str = "") -> str:
    """Return the CUDA source of a plan, banner included; a ``launcher`` replaces the host side of the text.

    Then the banner has no digest, as it is that of the text of a library.
    """
    jinja = environment()
    body = tidied(jinja.get_template(plan.template).render(plan=plan))
    digest = None if launcher else hashlib.sha256(body.encode()).hexdigest()[:16]
    body = body.partition(HOST_SIDE)[0] + launcher if launcher else body
    return jinja.get_template("banner.j2").render(plan=plan, digest=digest) + body


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
    environment.filters |= {"inset": _inset, "each": _each}
    environment.globals["abi"] = ABI
    return environment


def tidied(text: str) -> str:
    """Return the text without the definitions that nothing uses, with pragmas in the first column.

    Templates print helper functions and constants unconditionally. NVRTC sees no launcher, and compilers warn about
    unused constants, of which the launcher uses none.
    """
    device, host_side, launcher = text.partition(HOST_SIDE)
    found = list(DEFINITION.finditer(device))
    texts: dict[str, str] = {}  # by name; those of overloads together
    constants = set()
    for each in found:
        name = each[each.lastindex or 0]
        texts[name] = texts.get(name, "") + each[0]
        if each.lastgroup:
            constants.add(name)
    ends = [0, *(each.end() for each in found)]
    starts = [*(each.start() for each in found), len(device)]
    rest = [device[end:start] for end, start in zip(ends, starts, strict=True)]  # between the definitions
    kept = _reached(_named("\n".join(rest), texts) | _named(launcher, texts) - constants, texts)
    lines = [each[0] if each[each.lastindex or 0] in kept else "" for each in found]
    device = rest[0] + "".join(line + further for line, further in zip(lines, rest[1:], strict=True))
    text = INDENTED.sub("\n", EMPTY.sub("", device) + host_side + launcher)
    return CLOSED.sub("\n", OPENED.sub(r"\1", BLANK_LINES.sub("\n\n", text)))


def _named(text: str, texts: dict[str, str]) -> set[str]:
    """The names among ``texts`` that a text uses outside comments."""
    return texts.keys() & set(WORD.findall(COMMENT.sub("", text)))


def _reached(names: set[str], texts: dict[str, str]) -> set[str]:
    """``names``, and those that their definitions use, directly or through others."""
    reached: set[str] = set()
    while names:
        reached |= names
        names = set().union(*(_named(texts[name], texts) for name in names)) - reached
    return reached


def _inset(text: str, columns: int) -> str:
    """The output of a macro without surrounding blank lines, all lines but the first indented by ``columns``."""
    return text.strip().replace("\n", "\n" + " " * columns)


def _each(these: Iterable[object], text: str, between: str = "\n") -> str:
    """A text for each operand or output, as C lists and declarations need it; ``text`` is a format of one."""
    return between.join(text.format(one) for one in these)
