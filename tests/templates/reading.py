"""Generated text, read back: its functions, and how often a kernel runs each step once everything is inlined."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["Text", "body_below_banner"]

_HEAD = re.compile(r"^__(?:device|global)__ .*?(\w+)\([^()]*\) \{(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The device functions of one generated source, by name, without those of a second scan, in its namespace."""

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

    def calls(self, step: str, *, function: str = "scan_kernel") -> int:
        """How often ``function`` calls ``step``, itself or through others, each written call counted once."""
        body = self.functions[function]
        called = {name: _written(name, body) for name in self.functions if name != step}
        through = sum(times * self.calls(step, function=name) for name, times in called.items() if times)
        return _written(step, body) + through

    def patterns(self, pattern: str) -> int:
        """How often the kernel has ``pattern``, itself or through the functions it calls."""
        own = len(re.findall(pattern, self.kernel))
        others = (name for name in self.functions if name != "scan_kernel")
        return own + sum(self.calls(name) * len(re.findall(pattern, self.functions[name])) for name in others)


def _written(name: str, body: str) -> int:
    return _names_called(body)[name]


@functools.cache
def _names_called(body: str) -> Counter[str]:
    """How often each name stands in front of a bracket: every body is asked for every function, again and again."""
    return Counter(re.findall(r"(?<!::)\b(\w+)(?:<\d+>)?\(", body))


def body_below_banner(source: str) -> str:
    """What the banner's digest is over: everything after the comment lines and the blank line that ends them."""
    return source.split("\n\n", 1)[1]
