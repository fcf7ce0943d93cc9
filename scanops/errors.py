"""Exceptions that scanops raises: one base class, four parts in every message.

The first line of a message says what is wrong and shows the offending value, because many loggers and
``torch.compile`` show only that line; then come the allowed values and the next step. The parts are also attributes
(``asked``, ``value``, ``allowed``, ``hint``), so that a program can read them without parsing the text.

Example:
    >>> import torch, scanops
    >>> try:
    ...     scanops.cumsum(torch.ones(3), dim=1.5)
    ... except scanops.errors.UnsupportedRequest as error:
    ...     print(str(error).splitlines()[0])
    cumsum: dim must be an int: got dim=1.5
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial
from typing import TypeVar

__all__ = [
    "BadSignature",
    "BadSpecFile",
    "BadStoreEntry",
    "BadTuning",
    "BuildFailure",
    "DimensionOutOfRange",
    "LaunchFailure",
    "MissingCompiler",
    "MissingKernel",
    "MissingRequirement",
    "PeerLost",
    "PeerMismatch",
    "ScanopsError",
    "UnsupportedRequest",
    "UnusableFile",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Problem = TypeVar("Problem", bound=Exception)
_MOST_SHOWN = 200  # characters of a value in a message: a list may have millions of items


def format_value(value: object) -> str:
    """Return ``repr(value)`` for a message, cut to 200 characters; also for integers too long for Python to print."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_MOST_SHOWN:
        digits = int((value.bit_length() - 1) * 0.30102999566398)  # Python refuses to convert all of them
        leading = abs(value) // 10 ** (digits - 9)
        return f"{'-' if value < 0 else ''}{leading}... (an int of {value.bit_length()} bits)"
    try:
        text = repr(value)
    except Exception:  # whatever a class does there: a list of long integers raises ValueError
        return f"a {type(value).__name__} that has no repr"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def did_you_mean(value: object, known: Iterable[str], similarity: float = 0.6) -> str:
    """Return ``"did you mean 'sum'? "`` for a misspelled name, and an empty string where no known name is close.

    ``similarity`` is difflib's ratio, from 0 to 1: ask for more where most unknown names are no misspellings.

    Example:
        >>> did_you_mean("cumsun", ["cumsum", "cumprod"])
        "did you mean 'cumsum'? "
    """
    close = difflib.get_close_matches(str(value).lower(), list(known), n=1, cutoff=similarity)
    return f"did you mean {close[0]!r}? " if close else ""


def by_reason(problems: Iterable[tuple[str, Problem]]) -> list[tuple[Problem, list[str]]]:
    """Return each reason once, with the names of all kernels that it stops: ``"SLUG for TARGET"``.

    A message may hold the name of its kernel; messages that differ in nothing else are one reason.
    """
    found: dict[str, tuple[Problem, list[str]]] = {}
    for name, problem in problems:
        text = str(problem)
        for word in name.split(" for "):
            text = text.replace(word, "")
        found.setdefault(text, (problem, []))[1].append(name)
    return list(found.values())


class ScanopsError(Exception):
    """Base class of every error that scanops raises on purpose.

    Args:
        asked: what is wrong: "cumsum: dim must be an int".
        allowed: the values that are allowed.
        value: the offending value; the first line of the message is ``{asked}: got {value}``.
        hint: what to do next.
    """

    def __init__(self, asked: str, *, allowed: str, value: object, hint: str) -> None:
        self.asked = asked
        self.allowed = allowed
        self.value = value
        self.hint = hint
        text = str(value)
        first = text.partition("\n")[0]
        rest = text.partition("\n")[2]
        more = f"\n  got: {rest}" if rest else ""  # the rest of the words of a compiler, for example
        # Not by super().__init__, which torch.compile cannot trace: it would report that in place of this error.
        self.args = (f"{asked}: got {first}\n  allowed: {allowed}{more}\n  next: {hint}",)

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own pickling loses keyword-only arguments, and errors cross process boundaries.
        return partial(type(self), self.asked, allowed=self.allowed, value=self.value, hint=self.hint), ()


class UnsupportedRequest(ScanopsError, ValueError):
    """An argument is invalid or not supported: operator, dtype, shape, mask, ``out``, device, target."""


class DimensionOutOfRange(UnsupportedRequest, IndexError):
    """``dim`` is not a dimension of the tensor. Also an IndexError, as torch raises."""


class BuildFailure(ScanopsError, RuntimeError):
    """No compiler was found, or it refused the source. The message holds the command and its output."""


class MissingCompiler(BuildFailure):
    """This machine has no compiler for the target: no NVRTC; no nvcc, host compiler or CUDA runtime."""


class MissingKernel(ScanopsError, RuntimeError):
    """The store has no such kernel, and the policy does not allow building it or this machine cannot."""


class MissingRequirement(ScanopsError, RuntimeError):
    """A GPU or an optional package that the request needs is missing."""


class PeerMismatch(UnsupportedRequest):
    """The ranks of a process group make different calls, or one has refused its own. Raised on every rank."""


class PeerLost(ScanopsError, RuntimeError):
    """A rank of a process group ended, or was late by more than the group's timeout. The message holds its error."""


class BadStoreEntry(ScanopsError, RuntimeError):
    """A store entry, or the store itself, is corrupt, owned by another user, unreadable or unwritable."""


class BadSignature(ScanopsError, RuntimeError):
    """A pack carries no signature by a trusted key, or a file is not the requested key."""


class BadSpecFile(UnsupportedRequest):
    """A spec file is invalid: not TOML, not a regular file, or with a table that describes no spec."""


class BadTuning(ScanopsError, ValueError):
    """A tuning file cannot be used: unreadable, of another format, or with an invalid entry."""


class UnusableFile(ScanopsError, RuntimeError):
    """The operating system refused to read or write a file. The message holds its error."""


class LaunchFailure(ScanopsError, RuntimeError):
    """The CUDA runtime or driver refused a kernel, or the emulator stopped it. The message holds its error."""
