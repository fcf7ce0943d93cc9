"""Building what calls kernels: one C++ file against torch's and Python's headers. Needs both installed, and no CUDA."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from scanops.artifact import HOST, LINK_FLAGS, BuildReport, BuildRequest
from scanops.builders.commands import run, text
from scanops.builders.toolchain import find_cxx
from scanops.errors import BuildFailure

__all__ = ["build_host"]

_LIBRARIES = ("torch_python", "torch_cpu", "c10")


def build_host(request: BuildRequest, source: Path, directory: Path) -> BuildReport:
    """The host compiler, twice. What is linked is in the process before the result is: no search path is recorded."""
    import torch

    cxx = find_cxx()
    package = Path(torch.__file__).parent
    headers = [package / "include", package / "include/torch/csrc/api/include", _python_headers()]
    compile_command = [
        str(cxx.path),
        *("-x", "c++", "-fPIC"),
        *request.flags,
        f"-ffile-prefix-map={package}=torch",  # torch's checks name their files
        *(f"-isystem{folder}" for folder in headers),
        *("-c", str(source), "-o", str(directory / "kernel.o")),
    ]
    link_command = [
        *(str(cxx.path), "-shared", str(directory / "kernel.o"), f"-L{package / 'lib'}"),
        *(*LINK_FLAGS, "-Wl,-z,undefs"),  # Python itself has what is not in a library
        *(f"-l{name}" for name in _LIBRARIES),
        *("-o", str(directory / "kernel.so")),
    ]
    run(request, cxx.version, directory, [compile_command, link_command])
    return BuildReport(
        library=directory / "kernel.so",
        command=text([compile_command, link_command]),
        seconds=0.0,
        resources=None,
        toolchain={"route": HOST, "cxx": cxx.version, "torch": str(torch.__version__)},
    )


def _python_headers() -> Path:
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        raise BuildFailure(
            "build what calls kernels natively",
            allowed="a Python with its headers",
            value=f"no Python.h in {folder}",
            hint="install them (python3-dev), or go on: calls are served from Python",
        )
    return folder
