"""Machine code that is loaded, and how a kernel in it is launched: the same for libraries and cubins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Bound(NamedTuple):
    """A kernel bound to a shape and a device. It is launched by ``launch(refer(arguments), stream)``."""

    workspace_bytes: int  # 0: the kernel has no workspace
    refer: Callable[[Any], Any]  # from ScanArguments to a reference to them, good for many launches
    launch: Callable[[Any, int], int]  # queue the kernel on a stream; returns an error code, 0 for success
    words: Callable[[int], str]  # from an error code to its message
    function: Any  # the C function behind ``launch``
    configure: Callable[[int, int], None] | None = None  # set seed and multiprocessors of the emulator
    kernel: tuple[Any, ...] = ()  # what ``function`` launches if it is cuLaunchKernel: see store.driver
    recovers: Callable[[int], bool] = lambda code: False  # remove the cause of an error; whether to launch again


class Code(Protocol):
    """Machine code of a kernel: a ``Library``, or a ``store.driver.Cubin``."""

    def bind(self, arguments: Any, device: int) -> Bound:
        """Return the launch for the shape in ``arguments``, a ScanArguments, on a GPU; -1 is the emulator."""

    def ready(self, device: int) -> None:
        """Do now on a GPU what would be left to the first launch there."""
