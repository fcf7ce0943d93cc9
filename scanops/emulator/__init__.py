"""The emulator: CPU tensors go through the generated kernels, compiled by g++, inside ``with scanops.emulate():``.

A kernel text says ``#include <cuda_runtime.h>``; with ``-I`` on ``HEADER_DIRECTORY`` g++ finds the one here, and the
object is linked with that of ``HOST_SOURCE``. It proves the text's arithmetic, indexing, barriers and warp collectives.
It proves nothing about the memory model or speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from scanops.codegen.targets import CPU as CPU
from scanops.errors import UnsupportedRequest

HEADER_DIRECTORY = Path(__file__).parent
HOST_SOURCE = HEADER_DIRECTORY / "host.cpp"  # what is the same for every kernel: scheduler, fibers, reports


class Emulation(NamedTuple):
    """Settings of the emulator inside one ``emulate()`` block."""

    seed: int  # of the order in which threads run; 0 runs them in order
    multiprocessors: int  # of the pretended GPU, and the blocks that are alive at a time


DEFAULT = Emulation(seed=0, multiprocessors=3)

# The innermost emulation that this code runs in; None outside of all. The C++ call path reads it, too.
ACTIVE: ContextVar[Emulation | None] = ContextVar("scanops_emulation", default=None)


@contextmanager
def emulate(*, seed: int = DEFAULT.seed, multiprocessors: int = DEFAULT.multiprocessors) -> Iterator[Emulation]:
    """Inside the block, scans of CPU tensors run the very kernel text a GPU would, compiled by g++.

    Threads of a block become fibers. Shared memory out of bounds, a barrier some threads skip and a shuffle with an
    absent lane are errors that name block and thread. It says nothing about the GPU's memory model: compute-sanitizer
    on a GPU does.

    Args:
        seed: of the order in which the threads of a block run; 0 runs them in order.
        multiprocessors: of the emulated GPU, and the number of blocks that are alive at a time.

    Raises:
        UnsupportedRequest: a seed below 0 or a GPU of no multiprocessors.
        BuildFailure: at the first scan, when there is no g++.

    Example:
        >>> import torch, scanops
        >>> with scanops.emulate():
        ...     scanops.cumsum(torch.ones(4), 0)
        tensor([1., 2., 3., 4.])
    """
    for name, value, least in (("seed", seed, 0), ("multiprocessors", multiprocessors, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise UnsupportedRequest(
                f"an emulation with {name}={value!r}",
                allowed=f"a whole number from {least} to 2147483647",
                value=f"{name}={value!r}",
                hint=f"leave {name} out for the default",
            )
    emulation = Emulation(seed=seed, multiprocessors=multiprocessors)
    token = ACTIVE.set(emulation)
    try:
        yield emulation
    finally:
        ACTIVE.reset(token)
