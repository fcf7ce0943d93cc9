"""Rendering: a plan to CUDA text through the template of its strategy, below a banner."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import TYPE_CHECKING

from scanops.artifact import ABI
from scanops.codegen.lines import few_for
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET

if TYPE_CHECKING:
    import jinja2

__all__ = ["environment", "generate", "render"]

INTRINSICS = "#ifdef __CUDACC__"  # begins the intrinsics of a text, up to the next #endif
FUNCTION = re.compile(r"(?ms)^(__device__ __forceinline__ [^\n]*?\b(\w+)\([^\n]*\) \{\n.*?^\}\n)")
HOST_SIDE = "#ifndef __CUDACC_RTC__  // host side"  # begins the launcher's part of a text


def generate(spec: ScanSpec, target: str = DEFAULT_TARGET, *, lines: int | None = None) -> str:
    """Return the CUDA source of the kernel for ``spec`` on ``target``: a complete translation unit.

    It needs neither a GPU nor a compiler, and returns the same text on every machine. The text includes only the CUDA
    runtime's header; nvcc, NVRTC and, against the emulator's header, g++ compile it. The kernel serves any number of
    lines; ``lines`` is the number that it is planned for, by default as many as fill the GPU.

    Raises:
        UnsupportedRequest: the target is not in the table.

    Example:
        >>> text = generate(ScanSpec(op="sum", dtype="float32", length=1024))
        >>> "scan_kernel" in text
        True
    """
    return render(make_plan(spec, target, few_for(spec, target, lines)))


def render(plan: Plan, *, exported: bool = False, takes_stream: bool = True) -> str:
    """Return the CUDA source of a plan, banner included.

    The banner of an ``exported`` text has no digest, since a launcher follows the kernel there. Without
    ``takes_stream`` the launcher queues on the default stream and does not name it.
    """
    jinja = environment()
    body = _tidied(jinja.get_template(plan.template).render(plan=plan, takes_stream=takes_stream))
    digest = None if exported else hashlib.sha256(body.encode()).hexdigest()[:16]
    return jinja.get_template("banner.j2").render(plan=plan, digest=digest) + body


@functools.cache
def environment() -> jinja2.Environment:
    """The Jinja2 environment of the templates: an undefined name is an error, never an empty string."""
    import jinja2  # imported late: a cache hit needs no templates

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("scanops.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is CUDA, not HTML
    )
    environment.filters["inset"] = _inset
    environment.globals["abi"] = ABI
    return environment


def _tidied(text: str) -> str:
    """The text with pragmas in the first column, without repeated blank lines, idle constants and idle intrinsics.

    Compilers warn about a constant that nothing uses, and NVRTC sees no launcher: what the launcher alone uses, it
    declares. Intrinsics come in groups, such as both directions of a conversion.
    """
    device, host_side, launcher = text.partition(HOST_SIDE)
    for line, name in re.findall(r"(?m)^(constexpr \w+ (\w+) = .+\n)", device):
        if len(re.findall(rf"\b{name}\b", device)) == 1:
            device = device.replace(line, "", 1)
            if re.search(rf"\b{name}\b", launcher):
                launcher = launcher.replace("\n", "\n" + line, 1)
    for function, name in FUNCTION.findall(device.partition(INTRINSICS)[2].partition("#endif")[0]):
        if len(re.findall(rf"\b{name}(?:<[^>]+>)?\(", device)) == 1:
            device = device.replace(function, "", 1)
    text = re.sub(r"(?m)^ +(?=#pragma|$)", "", device + host_side + launcher)
    return re.sub(r"\n{3,}", "\n\n", text)


def _inset(text: str, columns: int) -> str:
    """The output of a macro without surrounding blank lines, all lines but the first indented by ``columns``."""
    return text.strip().replace("\n", "\n" + " " * columns)
