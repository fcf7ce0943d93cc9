"""The text of an emulated kernel goes by the name kernel.cu, whatever file it is compiled from.

g++ writes the name of the source into the library, for the checks of -fsanitize, and -ffile-prefix-map does not reach
it there. Under one name two builds give the same bytes; what people read names the file that is kept.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["kept_names", "named"]

_SOURCE, _MAIN = "kernel.cu", "main.cpp"  # main.cpp is what load_inline calls it
_BARE = re.compile(rf"(?<![\w/.-]){re.escape(_SOURCE)}(?=:)")


def named(source: Path) -> str:
    """The text to compile."""
    return f'#line 1 "{_SOURCE}"\n' + source.read_text(encoding="utf-8")


def kept_names(text: str, directory: Path) -> str:
    """A command or a compiler's words about main.cpp in ``directory``, in terms of kernel.cu there."""
    main, source = str(directory / _MAIN), str(directory / _SOURCE)
    text = text.replace(f"-c {main}", f"-x c++ -c {source}").replace(main, source)
    return _BARE.sub(lambda _: source, text)
