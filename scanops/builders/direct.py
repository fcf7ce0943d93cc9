"""Building with the compilers themselves: one compile, one link. Needs no torch."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from scanops import environment
from scanops.builders.failure import build_failure
from scanops.builders.request import CPU, EMULATOR, LINK_FLAGS, BuildReport, BuildRequest
from scanops.builders.resources import parse_ptxas
from scanops.errors import BuildFailure
from scanops.toolchain import CudaToolkit, find_cxx, find_nvcc, require_target

__all__ = ["build_cpu", "build_cuda", "runtime_to_link"]


def build_cuda(request: BuildRequest, source: Path, directory: Path) -> BuildReport:
    """nvcc for the compile, the host compiler for the link, against the shared CUDA runtime."""
    toolkit, cxx = find_nvcc(), find_cxx()
    require_target(toolkit, request.target)
    runtime = runtime_to_link(toolkit)
    compile_command = [
        str(toolkit.nvcc),
        "-ccbin",
        str(cxx.path),
        "-c",
        "-Xcompiler",
        "-fPIC",
        "-Xptxas=-v",
        *request.flags,
        str(source),
        "-o",
        str(directory / "kernel.o"),
    ]
    # The runtime is named as a file: the pip toolkit has no libcudart.so link. What is recorded is its soname.
    link_command = _link(cxx.path, directory, str(runtime))
    log = _run(request, f"nvcc {toolkit.version}", directory, [compile_command, link_command])
    return BuildReport(
        library=directory / "kernel.so",
        command=_text([compile_command, link_command]),
        seconds=0.0,
        resources=parse_ptxas(log),
        toolchain={"route": "nvcc", "nvcc": toolkit.version, "cxx": cxx.version},
    )


def build_cpu(request: BuildRequest, source: Path, directory: Path) -> BuildReport:
    """g++ against the emulator's headers."""
    cxx = find_cxx()
    compile_command = [
        str(cxx.path),
        "-c",
        "-fPIC",
        *request.flags,
        f"-I{EMULATOR}",
        "-x",
        "c++",
        str(source),
        "-o",
        str(directory / "kernel.o"),
    ]
    link_command = _link(cxx.path, directory)
    _run(request, cxx.version, directory, [compile_command, link_command])
    return BuildReport(
        library=directory / "kernel.so",
        command=_text([compile_command, link_command]),
        seconds=0.0,
        resources=None,
        toolchain={"route": CPU, "cxx": cxx.version},
    )


def runtime_to_link(toolkit: CudaToolkit) -> Path:
    """The toolkit's libcudart.so.N. Raises BuildFailure when the toolkit has none."""
    if toolkit.runtime is None:
        raise BuildFailure(
            "link against the CUDA runtime",
            allowed="a toolkit with libcudart.so.*",
            value=f"none in {toolkit.root}",
            hint='pip install "cuda-toolkit[nvcc,cudart,cccl]", or set SCANOPS_NVCC to the nvcc of a whole toolkit',
        )
    return toolkit.runtime


def _link(cxx: Path, directory: Path, *libraries: str) -> list[str]:
    library, objects = str(directory / "kernel.so"), str(directory / "kernel.o")
    return [str(cxx), "-shared", objects, *LINK_FLAGS, *libraries, "-o", library]


def _run(request: BuildRequest, compiler: str, directory: Path, commands: list[list[str]]) -> str:
    log = ""
    for command in commands:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment.child(),
            check=False,
        )
        log += done.stdout
        if done.returncode != 0:
            raise build_failure(request, compiler, shlex.join(command), done.stdout, directory)
    return log


def _text(commands: list[list[str]]) -> str:
    return "\n".join(shlex.join(command) for command in commands)
