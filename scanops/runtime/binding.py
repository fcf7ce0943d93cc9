"""Kernels bound to a shape and a device: both kinds of binary are launched by the same means, a ``LaunchBinding``.

It follows from the launch in the manifest of a store entry. A library launches through the CUDA runtime that it is
linked with, or is emulated; a cubin through the driver (driver.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from scanops.codegen.launch import MOST_BLOCKS, Launch


class BoundKernel(NamedTuple):
    """A kernel and the numbers of its launch, as the C++ call path reads them."""

    handle: int  # 0: that of the library whose function launches it
    blocks: int
    threads: int
    shared_bytes: int
    parameters: tuple[int, ...]  # offset of each in ScanArguments


class LaunchBinding(NamedTuple):
    """A kernel bound to a shape and a device. It is launched by ``launch(refer(arguments), stream)``."""

    workspace_bytes: int  # 0: the kernel has no workspace
    refer: Callable[[Any], Any]  # from ScanArguments to a reference to them, good for many launches
    launch: Callable[[Any, int], int]  # queue the kernel on a stream; returns an error code, 0 for success
    describe: Callable[[int], str]  # from an error code to its message
    function: Any  # cuLaunchKernel, or scanops_launch of a library, which takes the same
    kernel: BoundKernel
    early: Any = None  # cuLaunchKernelEx, which lets the kernel begin before those ahead of it have ended
    configure: Callable[[int, int], None] | None = None  # set seed and multiprocessors of the emulator
    recover: Callable[[int], bool] = lambda code: False  # remove the cause of an error; whether to launch again


def bind_launch(
    launch: Launch, arguments: Any, function: Any, kernel: ctypes.c_void_p, describe: Callable[[int], str]
) -> LaunchBinding:
    """Return the launch of a kernel for the shape in ``arguments``, and set their fields that the length chooses."""
    counted = next((name for name in ("neighbours", "sizes") if name in launch.parameters), None)
    beside = getattr(arguments, counted).size if counted else 0
    numbers = launch.numbers(arguments.lines, arguments.length, arguments.multiprocessors, beside)
    for name, value in zip(launch.chosen, numbers.chosen, strict=True):
        setattr(arguments, name, value)
    offsets = tuple(getattr(type(arguments), name).offset for name in launch.parameters)
    blocks = min(numbers.blocks, MOST_BLOCKS + 1)  # which CUDA refuses; more might wrap around
    addresses = ctypes.c_void_p * len(offsets)
    # Objects of ctypes are passed as they are: conversions of eleven numbers would take two microseconds.
    one, none = ctypes.c_uint(1), ctypes.c_void_p()
    grid, block, shared = ctypes.c_uint(blocks), ctypes.c_uint(numbers.threads), ctypes.c_uint(numbers.shared_bytes)

    def refer(arguments: Any) -> Any:
        first = ctypes.addressof(arguments)
        return addresses(*[first + offset for offset in offsets])

    def queue(parameters: Any, stream: int) -> int:
        where = ctypes.c_void_p(stream)
        return function(kernel, grid, one, one, block, one, one, shared, where, parameters, none)  # type: ignore[no-any-return]

    return LaunchBinding(
        workspace_bytes=numbers.workspace_bytes,
        refer=refer,
        launch=queue,
        describe=describe,
        function=function,
        kernel=BoundKernel(kernel.value or 0, blocks, numbers.threads, numbers.shared_bytes, offsets),
    )
