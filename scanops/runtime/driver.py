"""Cubins, loaded and launched through the CUDA driver, which is opened for the first cubin of a process.

The driver launches into the context that is current in the calling thread. The CUDA runtime, and so torch and kernels
in libraries, bind a thread to the primary context of its device by themselves. A thread that used no function of the
runtime yet has no context; a launch there is error 201, after which ``LaunchBinding.recover`` binds the primary one.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from typing import Any

from scanops.errors import LaunchFailure, MissingRequirement
from scanops.forks import FORK_LOCK
from scanops.runtime.binding import LaunchBinding, bind_launch
from scanops.store.library import Cubin

PATH = "libcuda.so.1"  # the driver that torch has loaded
VERSION = 12000  # CUDA 12.0, the first with cuLibraryLoadData
EARLY_VERSION = 12040  # CUDA 12.4: graphs capture early launches since 12.3
_INVALID_CONTEXT = 201
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_FUNCTIONS = {  # argument types; all return a CUresult
    "cuCtxPopCurrent_v2": [c_void_p],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxSetCurrent": [c_void_p],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuDriverGetVersion": [c_void_p],
    "cuGetErrorName": [c_int, c_void_p],
    "cuGetErrorString": [c_int, c_void_p],
    "cuKernelGetFunction": [c_void_p, c_void_p],
    "cuKernelSetAttribute": [c_int, c_int, c_void_p, c_int],
    "cuLibraryGetKernel": [c_void_p, c_void_p, c_char_p],
    "cuLibraryLoadData": [c_void_p, c_char_p, c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint],
}
_CONTEXTS: dict[int, c_void_p] = {}  # index of a GPU -> its primary context, which is kept as torch keeps it


@functools.cache
def driver() -> ctypes.CDLL:
    """Return the CUDA driver. Raises MissingRequirement where there is none, or one older than CUDA 12.0."""
    found = "no driver"
    try:
        library = ctypes.CDLL(PATH)
        version = _version_of(library)
        found = f"a driver for CUDA {version // 1000}.{version % 1000 // 10}"
        if version >= VERSION:
            for name, types in _FUNCTIONS.items():
                getattr(library, name).argtypes = types
            return library
    except (OSError, AttributeError) as problem:
        found += f": {problem}"
    raise MissingRequirement(
        "a kernel that is a cubin needs a newer CUDA driver",
        allowed="an NVIDIA driver for CUDA 12.0 or later",
        value=found,
        hint="update the driver, or build a library: SCANOPS_BUILDER=load_inline, or nvcc",
    )


def find_early_launch() -> Any:
    """Return cuLaunchKernelEx, which lets kernels begin early, or None where the driver is older than CUDA 12.4."""
    return driver().cuLaunchKernelEx if _version_of(driver()) >= EARLY_VERSION else None


def _version_of(library: ctypes.CDLL) -> int:
    version = c_int()
    library.cuDriverGetVersion(byref(version))
    return version.value


def describe_error(code: int) -> str:
    """Return the driver's name and description of an error code."""
    found = []
    for function in (driver().cuGetErrorName, driver().cuGetErrorString):
        text = c_char_p()
        function(code, byref(text))
        found.append((text.value or b"unknown").decode(errors="replace"))
    return ": ".join(found)


class LoadedCubin:
    """A verified cubin and its kernel. The driver loads it for all GPUs when it is first bound, and never unloads it.

    Launches in flight and CUDA graphs may use it for as long as the process lives, as they may a library.
    """

    def __init__(self, cubin: Cubin) -> None:
        self.launch = cubin.launch
        self._entry = cubin.entry
        self._data: bytes | None = cubin.data
        self._kernel = c_void_p()
        self._devices: set[int] = set()  # indices of the GPUs on which it is loaded

    def bind(self, arguments: Any, device: int) -> LaunchBinding:
        """Return the launch on a GPU for the shape in ``arguments``: see ``bind_launch``."""
        self.load_on_device(device)

        def recover(code: int) -> bool:
            return code == _INVALID_CONTEXT and driver().cuCtxSetCurrent(_CONTEXTS[device]) == 0

        function = driver().cuLaunchKernel
        binding = bind_launch(self.launch, arguments, function, self._kernel, describe_error)
        return binding._replace(recover=recover, early=find_early_launch() if self.launch.early else None)

    def load_on_device(self, device: int) -> None:
        """Load the kernel on a GPU, with the shared memory that it needs: nothing is left to a first launch.

        A first launch may be one that a CUDA graph captures. Raises LaunchFailure with the driver's words.
        """
        with FORK_LOCK:
            if device in self._devices:
                return
            if self._data is not None:
                library = c_void_p()
                self._call("cuLibraryLoadData", byref(library), self._data, None, None, 0, None, None, 0)
                self._call("cuLibraryGetKernel", byref(self._kernel), library, self.launch.kernel.encode())
                self._data = None  # the driver has a copy
            if device not in _CONTEXTS:
                context = c_void_p()
                self._call("cuDevicePrimaryCtxRetain", byref(context), device)
                _CONTEXTS[device] = context
            self._call("cuCtxPushCurrent_v2", _CONTEXTS[device])
            try:
                self._call("cuKernelGetFunction", byref(c_void_p()), self._kernel)
            finally:
                driver().cuCtxPopCurrent_v2(byref(c_void_p()))
            if self.launch.shared_bytes:
                self._call("cuKernelSetAttribute", _MAX_DYNAMIC_SHARED, self.launch.shared_bytes, self._kernel, device)
            self._devices.add(device)

    def _call(self, function: str, *arguments: object) -> None:
        """Call the driver. Raises LaunchFailure for an error code."""
        if code := getattr(driver(), function)(*arguments):
            raise LaunchFailure(
                f"load of the cubin {self._entry.slug} for {self._entry.target}",
                allowed="a cubin that the driver loads on this GPU",
                value=f"error {code} of {function}: {describe_error(code)}",
                hint="SCANOPS_BUILDER=load_inline builds a library of the same source",
            )
