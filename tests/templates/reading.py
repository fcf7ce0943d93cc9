"""Generated text, read back: its device functions by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Text", "body_below_banner"]

_HEAD = re.compile(r"^__(?:device|global)__ .*?(\w+)\([^()]*\) \{(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The device functions of one generated source, without those of a second scan, in its namespace."""

    source: str
    functions: dict[str, str]  # name -> body

    @classmethod
    def of(cls, source: str) -> Text:
        """Read a generated source: a function is one line, or ends at the next brace in the first column."""
        functions: dict[str, str] = {}
        joined = re.sub(r"(__launch_bounds__\([^)]*\))\n|,\n\s+(?=const )", r"\1 ", source)  # heads over two lines
        lines = iter(re.sub(r"(?ms)^namespace (\w+) \{$.*?^\}  // namespace \1$", "", joined).splitlines())
        for line in lines:
            head = _HEAD.match(line)
            if not head:
                continue
            body = [head[2]]
            while not line.endswith("}") or line.startswith(" "):
                line = next(lines)
                body.append(line)
            functions[head[1]] = "\n".join(body)
        return cls(source=source, functions=functions)

    @property
    def kernel(self) -> str:
        """The body of the kernel."""
        return self.functions["scan_kernel"]


def body_below_banner(source: str) -> str:
    """The text that the banner's digest covers: all below the comment lines and the blank line after them."""
    return source.split("\n\n", 1)[1]
