"""The machine code of a kernel in this process: a library, or a cubin that the driver loads; how each is launched."""

from __future__ import annotations

import ctypes
from typing import Any

from scanops.runtime.binding import LaunchBinding, bind_launch
from scanops.runtime.driver import LoadedCubin
from scanops.store.entry import Entry
from scanops.store.library import CONFIGURE, Cubin, Library, load

Binary = Library | LoadedCubin


def load_binary(entry: Entry) -> Binary:
    """Return the verified machine code of a store entry. A cubin needs no GPU yet. Raises what ``load`` raises."""
    code = load(entry)
    return LoadedCubin(code) if isinstance(code, Cubin) else code


def load_on_device(binary: Binary, device: int) -> None:
    """Load a cubin on a GPU. The CUDA runtime brings a library to a GPU by itself, at its first launch there."""
    if isinstance(binary, LoadedCubin):
        binary.load_on_device(device)


def bind_binary(binary: Binary, arguments: Any, device: int) -> LaunchBinding:
    """Return the launch for the shape in ``arguments``; the CUDA runtime takes that of a library to the current GPU."""
    if isinstance(binary, LoadedCubin):
        return binary.bind(arguments, device)

    def describe(code: int) -> str:
        return (binary.scanops_error_string(code) or b"unknown").decode(errors="replace")

    binding = bind_launch(binary.launch, arguments, binary.scanops_launch, ctypes.c_void_p(), describe)
    return binding._replace(configure=vars(binary).get(CONFIGURE))
