"""The emulator's half that is the same for every kernel: compiled once for a compiler and its flags, then kept.

Compiled with each kernel it would be most of the time that an emulated kernel takes to build.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from scanops import environment
from scanops.artifact import BuildRequest, emulator_digest
from scanops.builders.commands import run
from scanops.builders.toolchain import HostCompiler
from scanops.emulator import HOST_SOURCE
from scanops.store import parts

__all__ = ["host_object"]

_INCLUDES = re.compile(r'^\s*#\s*include\s*[<"]cuda_runtime\.h[>"]', re.MULTILINE)


def host_object(request: BuildRequest, cxx: HostCompiler, directory: Path) -> Path | None:
    """The object file in ``directory`` to link ``request``'s kernel with; None when its text uses no emulator.

    It is a copy of the one in the store. On a miss it is compiled, and the store keeps it if it can.
    Raises BuildFailure when the compiler refuses it.
    """
    if not _INCLUDES.search(request.source):
        return None
    made = directory / "host.o"

    def make() -> bytes:
        command = [str(cxx.path), "-c", "-fPIC", *request.flags, str(HOST_SOURCE), "-o", str(made)]
        run(request, cxx.version, directory, [command])
        return made.read_bytes()

    made.write_bytes(parts.made(environment.store_root(), _name(request, cxx), make, environment.lock_seconds()))
    return made


def _name(request: BuildRequest, cxx: HostCompiler) -> str:
    """From all that the object follows from, so that none is ever stale."""
    made_from = [str(cxx.path), cxx.version, cxx.stamp, request.flags, emulator_digest()]
    return f"host-{hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]}.o"
