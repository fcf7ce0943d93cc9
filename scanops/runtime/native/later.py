"""The native part comes when it pays: to a program whose calls repeat, without one of them waiting for it."""

from __future__ import annotations

import itertools
import logging

from scanops import environment
from scanops.artifact import CPU
from scanops.errors import ScanopsError
from scanops.runtime import background, native, policies

__all__ = ["prepared", "repeated"]

_LOG = logging.getLogger("scanops")
# Half a minute of a compiler for 8 us a call: a script that calls a few times is spared both that and the look-up.
_REPEATS = 256
_counted = itertools.count(1)


def repeated(target: str) -> None:
    """Count a call like one before it; the ``_REPEATS``-th asks the worker for the library."""
    if target != CPU and next(_counted) == _REPEATS and environment.native():
        may_build = policies.current().may_build and environment.require_signed() is None
        background.run_later("native", "what serves calls natively", lambda: _get(may_build))


def prepared(target: str) -> None:
    """Have the library now, as far as the policy lets it be built; without it calls are right all the same."""
    if target == CPU or not environment.native():
        return
    try:
        native.get(build=policies.current().may_build)
    except ScanopsError as problem:
        _LOG.warning("calls are served from Python: %s", problem)


def _get(may_build: bool) -> None:
    """In the worker's thread."""
    try:
        if not native.get(build=False) and may_build:
            # A process of its own, which ends with this one: a compiler is nothing to leave behind.
            background.run(background.python_command("scanops.runtime.native"))
            native.get(build=False)
    except ScanopsError as problem:
        _LOG.info("calls are served from Python: %s", problem)
