"""When the C++ fast path is built: after repeated calls, in the background, without a call waiting for it."""

from __future__ import annotations

import itertools
import logging

from scanops import environment
from scanops.artifact import CPU
from scanops.errors import ScanopsError
from scanops.runtime import background, native, policies

__all__ = ["prepared", "repeated"]

_LOG = logging.getLogger("scanops")
# Half a minute of g++ to save 8 us per call: short scripts skip both the build and the lookup.
_REPEATS = 256
_counted = itertools.count(1)


def repeated(target: str) -> None:
    """Count a call like one before it; the ``_REPEATS``-th asks the worker for the library."""
    if target != CPU and next(_counted) == _REPEATS and environment.native():
        may_build = policies.current().may_build and environment.require_signed() is None
        background.run_later("native", "what serves calls natively", lambda: _get(may_build))


def prepared(target: str) -> None:
    """Load the library now, or build it if the policy allows it; calls are correct without it."""
    if target == CPU or not environment.native():
        return
    try:
        native.get(build=policies.current().may_build)
    except ScanopsError as problem:
        _LOG.warning("calls are served from Python: %s", problem)


def _get(may_build: bool) -> None:
    """Load the library in the worker's thread, or build it in a child process."""
    try:
        if not native.get(build=False) and may_build:
            # A child process that ends with this one, so that no compiler is left running.
            background.run(background.python_command("scanops.runtime.native"))
            native.get(build=False)
    except ScanopsError as problem:
        _LOG.info("calls are served from Python: %s", problem)
