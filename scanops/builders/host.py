"""The emulator's host object: the part that is the same for every emulated kernel, compiled once and linked into each.

Compiled with each kernel it would be most of the time that an emulated kernel takes to build. The store keeps it.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from scanops.artifact import CPU, BuildRequest, emulator_digest
from scanops.builders.programs import run_all
from scanops.builders.toolchain import find_cxx
from scanops.emulator import HOST_SOURCE

__all__ = ["HOST_OBJECT", "compile_host", "host_name", "host_object"]

HOST_OBJECT = "host.o"
_INCLUDES = re.compile(r'^\s*#\s*include\s*[<"]cuda_runtime\.h[>"]', re.MULTILINE)


def host_name(request: BuildRequest) -> str | None:
    """Return the file name under which the store keeps the object; None for a text that does not use the emulator.

    The name is a digest of all that the object follows from, so it is never stale.
    """
    if request.target != CPU or not _INCLUDES.search(request.source):
        return None
    cxx = find_cxx()
    made_from = [str(cxx.path), cxx.version, request.flags, emulator_digest()]
    return f"host-{hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]}.o"


def compile_host(request: BuildRequest, directory: Path) -> bytes:
    """Compile the object in ``directory`` and return its bytes. Raises BuildFailure when the compiler refuses it."""
    cxx, made = find_cxx(), directory / HOST_OBJECT
    command = [str(cxx.path), "-c", "-fPIC", *request.flags, str(HOST_SOURCE), "-o", str(made)]
    run_all(request, cxx.version, directory, [command])
    return made.read_bytes()


def host_object(request: BuildRequest, directory: Path) -> Path | None:
    """Return the object to link with: the one that the store has put into ``directory``, or compiled there."""
    if host_name(request) is None:
        return None
    made = directory / HOST_OBJECT
    if not made.is_file():
        compile_host(request, directory)
    return made
