"""The C++ fast path as an entry of the store: found, built, verified and loaded like a kernel.

One library serves one PyTorch, Python and platform. Its identity follows from these and from its text, so the store,
packs and signatures treat it as they do kernels. A wheel may bring libraries for several: ``prebuilt`` below is laid
out as a pack, and verified as one.
"""

from __future__ import annotations

import ctypes
import logging
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

from scanops.build_request import HOST, BuildRequest
from scanops.codegen.abi import ABI
from scanops.store import Store
from scanops.store.entry import Entry
from scanops.store.layers import Layer
from scanops.store.library import Library, load

PREBUILT = Path(__file__).with_name("prebuilt")
_FOLDER = Path(__file__).with_name("source")
_FILES = ("traced.h", "call.h", "table.h", "gradient.h", "patch.h", "module.cpp")  # each includes the one before
_OWN = re.compile(r'^#(pragma once|include ".*")\n', re.MULTILINE)


def source() -> str:
    """Return the C++ source of the library as one text."""
    return "".join(_OWN.sub("", (_FOLDER / name).read_text(encoding="utf-8")) for name in _FILES)


def request() -> BuildRequest:
    """Return the build request for the PyTorch and Python of this process."""
    # CPU and CUDA builds of a version have one C++ interface: their headers differ in a list of build settings alone.
    public = str(torch.__version__).partition("+")[0]
    tag = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    macros = {
        "SCANOPS_TORCH": f"{public}-{torch.version.git_version or 'unknown'}",
        "SCANOPS_CXX11_ABI": int(torch.compiled_with_cxx11_abi()),
        "SCANOPS_PYTHON": tag,
        "SCANOPS_ABI": ABI,
        "AT_PER_OPERATOR_HEADERS": 1,  # of torch's operators those alone that are included: less for g++ to read
    }
    return BuildRequest(
        name=f"native-torch{public}-{sys.implementation.cache_tag}",
        source=source(),
        target=HOST,
        options=tuple(f"-D{name}={value}" for name, value in macros.items()),
    )


def find_library(store: Store | None = None) -> Entry | None:
    """Return the entry of a store, a pack or the installed wheel, or None. Builds nothing."""
    identity = request().identity
    entry = (store or Store()).find(identity)
    return Layer(PREBUILT).find(identity) if entry is None and PREBUILT.is_dir() else entry


def build(store: Store | None = None) -> Entry:
    """Return the entry, built if it is missing: half a minute of g++. Raises what a build of a kernel raises."""
    return (store or Store()).get_or_build(request())


def module_of(entry: Entry) -> ModuleType:
    """Load the module of a verified library. Raises BadStoreEntry and BadSignature."""
    library = load(entry)
    assert isinstance(library, Library)
    address = ctypes.cast(library.PyInit_scanops_native, ctypes.c_void_p).value
    assert address is not None
    module: ModuleType = ctypes.PYFUNCTYPE(ctypes.py_object)(address)()
    return module


def stream_getter() -> int:
    """Return the address of torch's C function for the current stream of a GPU; 0 if this torch has none."""
    if torch.version.cuda is None:
        return 0
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))  # already loaded by torch
        function = library.aoti_torch_get_current_cuda_stream
    except (OSError, AttributeError) as problem:
        logging.getLogger("scanops").info("calls on GPUs are served from Python: %s", problem)
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


if __name__ == "__main__":  # python -m scanops.runtime.native.building
    print(build().directory)
