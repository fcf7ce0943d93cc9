"""Building with the compilers themselves: one compile, one link. Kernels built so need no torch."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from scanops.artifact import CPU, EMULATOR, HOST, LINK_FLAGS, BuildReport, BuildRequest, Resources
from scanops.builders.host import host_object
from scanops.builders.programs import named, parse_ptxas, run_all
from scanops.builders.toolchain import CudaToolkit, HostCompiler, find_cxx, find_nvcc, require_safe, require_target
from scanops.errors import BuildFailure, MissingCompiler

__all__ = ["build_cpu", "build_cuda", "build_host", "runtime_to_link"]

_TORCH_LIBRARIES = ("torch_python", "torch_cpu", "c10")


def build_cuda(request: BuildRequest, source: Path, directory: Path) -> BuildReport:
    """Build with nvcc for the compile, the host compiler for the link, against the shared CUDA runtime."""
    toolkit, cxx = find_nvcc(), find_cxx()
    require_target(toolkit, request.target)
    require_safe(toolkit, cxx)
    runtime = runtime_to_link(toolkit)
    nvcc = [str(toolkit.nvcc), "-ccbin", str(cxx.path), "-c", "-Xcompiler", "-fPIC", "-Xptxas=-v", *request.flags]
    compile_command = [*nvcc, str(source), "-o", str(directory / "kernel.o")]
    # The runtime is named as a file: the pip toolkit has no libcudart.so link. What is recorded is its soname.
    commands = [compile_command, _link(cxx.path, directory, str(runtime))]
    log = run_all(request, f"nvcc {toolkit.version}", directory, commands)
    versions = {"route": "nvcc", "nvcc": toolkit.version, "cxx": cxx.version}
    return _report(directory, versions, parse_ptxas(log))


def build_cpu(request: BuildRequest, source: Path, directory: Path) -> BuildReport:
    """Build with g++ against the emulator's headers."""
    cxx = find_cxx()
    main = directory / "main.cpp"
    main.write_text(named(source), encoding="utf-8")
    host = host_object(request, directory)
    commands = [
        _compile(cxx, request, directory, f"-I{EMULATOR}", "-c", str(main)),
        _link(cxx.path, directory, *([str(host)] if host else [])),
    ]
    run_all(request, cxx.version, directory, commands)
    return _report(directory, {"route": CPU, "cxx": cxx.version})


def build_host(request: BuildRequest, source: Path, directory: Path) -> BuildReport:
    """Build the native call path: one C++ file against the headers of torch and Python, which must be installed.

    The libraries it is linked with are in the process before it is loaded, so no search path is recorded.
    """
    import torch

    cxx = find_cxx()
    package = Path(torch.__file__).parent
    headers = [package / "include", package / "include/torch/csrc/api/include", _python_headers()]
    commands = [
        _compile(
            cxx,
            request,
            directory,
            *("-x", "c++", f"-ffile-prefix-map={package}=torch"),  # torch's checks name their files
            *(f"-isystem{folder}" for folder in headers),
            *("-c", str(source)),
        ),
        # Python itself has what is not in a library.
        _link(
            cxx.path, directory, f"-L{package / 'lib'}", "-Wl,-z,undefs", *(f"-l{name}" for name in _TORCH_LIBRARIES)
        ),
    ]
    run_all(request, cxx.version, directory, commands)
    versions = {"route": HOST, "cxx": cxx.version, "torch": str(torch.__version__)}
    return _report(directory, versions)


def runtime_to_link(toolkit: CudaToolkit) -> Path:
    """Return the toolkit's libcudart.so.N. Raises MissingCompiler when the toolkit has none."""
    if toolkit.runtime is None:
        raise MissingCompiler(
            "link against the CUDA runtime",
            allowed="a toolkit with libcudart.so.*",
            value=f"none in {toolkit.root}",
            hint='pip install "cuda-toolkit[nvcc,cudart,cccl]", or set SCANOPS_NVCC to the nvcc of a whole toolkit',
        )
    return toolkit.runtime


def _python_headers() -> Path:
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        raise BuildFailure(
            "build the native call path",
            allowed="a Python with its headers",
            value=f"no Python.h in {folder}",
            hint="install them (python3-dev), or go on: calls are served from Python",
        )
    return folder


def _compile(cxx: HostCompiler, request: BuildRequest, directory: Path, *words: str) -> list[str]:
    return [str(cxx.path), "-fPIC", *request.flags, *words, "-o", str(directory / "kernel.o")]


def _link(cxx: Path, directory: Path, *libraries: str) -> list[str]:
    library, objects = str(directory / "kernel.so"), str(directory / "kernel.o")
    return [str(cxx), "-shared", objects, *LINK_FLAGS, *libraries, "-o", library]


def _report(directory: Path, toolchain: dict[str, str], resources: Resources | None = None) -> BuildReport:
    return BuildReport(library=directory / "kernel.so", seconds=0.0, resources=resources, toolchain=toolchain)
