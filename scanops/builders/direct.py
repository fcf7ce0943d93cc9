"""Building with the compilers themselves: one compile, one link. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from scanops.artifact import CPU, EMULATOR, LINK_FLAGS, BuildReport, BuildRequest
from scanops.builders.commands import run, text
from scanops.builders.host import host_object
from scanops.builders.naming import kept_names, named
from scanops.builders.resources import parse_ptxas
from scanops.builders.toolchain import CudaToolkit, find_cxx, find_nvcc, require_target
from scanops.errors import MissingCompiler

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
    log = run(request, f"nvcc {toolkit.version}", directory, [compile_command, link_command])
    return BuildReport(
        library=directory / "kernel.so",
        command=text([compile_command, link_command]),
        seconds=0.0,
        resources=parse_ptxas(log),
        toolchain={"route": "nvcc", "nvcc": toolkit.version, "cxx": cxx.version},
    )


def build_cpu(request: BuildRequest, source: Path, directory: Path) -> BuildReport:
    """g++ against the emulator's headers."""
    cxx = find_cxx()
    main = directory / "main.cpp"
    main.write_text(named(source), encoding="utf-8")
    compile_command = [
        str(cxx.path),
        "-fPIC",
        *request.flags,
        f"-I{EMULATOR}",
        "-c",
        str(main),
        "-o",
        str(directory / "kernel.o"),
    ]
    host = host_object(request, cxx, directory)
    link_command = _link(cxx.path, directory, *([str(host)] if host else []))
    run(request, cxx.version, directory, [compile_command, link_command])
    return BuildReport(
        library=directory / "kernel.so",
        command=kept_names(text([compile_command, link_command]), directory),
        seconds=0.0,
        resources=None,
        toolchain={"route": CPU, "cxx": cxx.version},
    )


def runtime_to_link(toolkit: CudaToolkit) -> Path:
    """The toolkit's libcudart.so.N. Raises BuildFailure when the toolkit has none."""
    if toolkit.runtime is None:
        raise MissingCompiler(
            "link against the CUDA runtime",
            allowed="a toolkit with libcudart.so.*",
            value=f"none in {toolkit.root}",
            hint='pip install "cuda-toolkit[nvcc,cudart,cccl]", or set SCANOPS_NVCC to the nvcc of a whole toolkit',
        )
    return toolkit.runtime


def _link(cxx: Path, directory: Path, *libraries: str) -> list[str]:
    library, objects = str(directory / "kernel.so"), str(directory / "kernel.o")
    return [str(cxx), "-shared", objects, *LINK_FLAGS, *libraries, "-o", library]
