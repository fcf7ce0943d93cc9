"""What scanops raises: one base class, four parts in every message.

Each error says what was asked, what is allowed, the offending value and the next step. The parts are also
attributes, so that a program can read them without parsing the text.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    "ScanopsError",
    "UnsupportedRequest",
    "UnusableFile",
]


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """Return ``"did you mean 'sum'? "`` for a misspelled name, and an empty string where no known name is close.

    Example:
        >>> did_you_mean("cumsun", ["cumsum", "cumprod"])
        "did you mean 'cumsum'? "
    """
    import difflib  # only errors need it

    close = difflib.get_close_matches(str(value).lower(), list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


class ScanopsError(Exception):
    """Base of every error scanops raises on purpose."""

    def __init__(self, asked: str, *, allowed: str, value: object, hint: str) -> None:
        self.asked = asked
        self.allowed = allowed
        self.value = value
        self.hint = hint
        # Not by super().__init__, which torch.compile cannot follow: it would speak of that in place of this error
        self.args = (f"{asked}\n  allowed: {allowed}\n  got: {value}\n  next: {hint}",)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive Exception's own pickling, and errors cross process boundaries.
        return _rebuild, (type(self), self.asked, self.allowed, self.value, self.hint)


def _rebuild(kind: type[ScanopsError], asked: str, allowed: str, value: object, hint: str) -> ScanopsError:
    return kind(asked, allowed=allowed, value=value, hint=hint)


class UnsupportedRequest(ScanopsError, ValueError):
    """The request makes no sense or is not supported: operator, dtype, shape, mask, ``out``, device, target."""


class DimensionOutOfRange(UnsupportedRequest, IndexError):
    """``dim`` is not a dimension of the tensor. Also an IndexError, which is what torch raises."""


class BuildFailure(ScanopsError, RuntimeError):
    """No compiler, or a compiler that refused the source. The message holds the command and its words."""


class MissingCompiler(BuildFailure):
    """This machine has no compiler for the target: no nvcc, no host C++ compiler, or a toolkit without its runtime."""


class MissingKernel(ScanopsError, RuntimeError):
    """The store has no such kernel and building is not allowed or not possible here."""


class MissingRequirement(ScanopsError, RuntimeError):
    """What was asked needs a GPU, or an optional package, that is not here."""


class BadStoreEntry(ScanopsError, RuntimeError):
    """A store entry, or the store itself, cannot be used: corrupt, foreign, unreadable or unwritable."""


class BadSignature(ScanopsError, RuntimeError):
    """A pack is not signed by a key that is trusted, or a file is not the key that was asked for."""


class BadSpecFile(UnsupportedRequest):
    """A file of specs makes no sense: no TOML, no plain file to add to, or a table that describes no spec."""


class BadTuning(ScanopsError, ValueError):
    """A file of measured plans cannot be used: unreadable, of another kind, or with an entry that makes no sense."""


class UnusableFile(ScanopsError, RuntimeError):
    """The system did not let a file that was named be read or written. The message holds its words."""


class LaunchFailure(ScanopsError, RuntimeError):
    """The CUDA runtime refused a launch, or the emulator stopped a kernel. The message holds its words."""
