"""The C++ fast path as an entry of the store: found, built, verified and loaded like a kernel.

One library serves one PyTorch, Python and platform. Its identity follows from these and from its text, so the store,
packs and signatures treat it as they do kernels. A wheel may bring libraries for several: ``prebuilt`` below is laid
out as a pack, and verified as one.

torch's stable ABI (torch/csrc/stable, the shims of AOTInductor) cannot serve instead: it has neither nodes of autograd
and saved tensors, nor a Python tensor's C++ one, nor the dispatch keys of a thread.
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

from scanops import environment
from scanops.artifact import ABI, HOST, BuildRequest
from scanops.errors import BadStoreEntry
from scanops.store.entry import Entry
from scanops.store.layers import Layer
from scanops.store.library import Library, load
from scanops.store.store import Store

PREBUILT = Path(__file__).with_name("prebuilt")
_LOG = logging.getLogger("scanops")
_FOLDER = Path(__file__).with_name("source")
_FILES = ("call.h", "table.h", "gradient.h", "module.cpp")  # each includes the one before
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
    }
    return BuildRequest(
        name=f"native-torch{public}-{sys.implementation.cache_tag}",
        source=source(),
        target=HOST,
        options=tuple(f"-D{name}={value}" for name, value in macros.items()),
    )


def brought() -> Entry | None:
    """Return the entry for this PyTorch and Python that the installed wheel has, or None.

    None under SCANOPS_REQUIRE_SIGNED, too: then a signed pack has to bring it.
    """
    if environment.require_signed() is not None or not PREBUILT.is_dir():
        return None
    return Layer(PREBUILT).find(request().identity)


def found(store: Store | None = None) -> Entry | None:
    """Return the entry of a store or pack, or None. Builds nothing."""
    return (store or Store()).find(request().identity)


def built(store: Store | None = None) -> Entry:
    """Return the entry, built if it is missing: half a minute of g++. Raises what a build of a kernel raises."""
    return (store or Store()).get_or_build(request())


def module(*, build: bool) -> ModuleType | None:
    """Load the module of the wheel, else of the store or a pack; build it if ``build``, else None where there is none.

    Raises what loading and building a kernel raise.
    """
    if (entry := brought()) is not None:
        try:
            return module_of(entry)
        except BadStoreEntry as problem:  # built for a newer C library, for example
            _LOG.warning("the prebuilt call path is not used: %s", problem)
    entry = found() or (built() if build else None)
    return None if entry is None else module_of(entry)


def module_of(entry: Entry) -> ModuleType:
    """Load the module of a verified library. Raises BadStoreEntry and BadSignature."""
    library = load(entry)
    assert isinstance(library, Library)
    address = ctypes.cast(library.PyInit_scanops_native, ctypes.c_void_p).value
    assert address is not None
    loaded: ModuleType = ctypes.PYFUNCTYPE(ctypes.py_object)(address)()
    _LOG.info("calls are served natively: %s", entry.directory)
    return loaded


def stream_getter() -> int:
    """Return the address of torch's C function for the current stream of a GPU; 0 if this torch has none."""
    if torch.version.cuda is None:
        return 0
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))  # already loaded by torch
        function = library.aoti_torch_get_current_cuda_stream
    except (OSError, AttributeError) as problem:
        _LOG.info("calls on GPUs are served from Python: %s", problem)
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
