"""Building with the compilers themselves: one compile, one link. Kernels built so need no torch.

Emulated kernels are linked with an object that is the same for each. Compiled with each it would be half of the time
that an emulated kernel takes to build: a process compiles it once.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from scanops.build_request import CPU, HOST, LINK_FLAGS, BuildReport, BuildRequest, digest_of
from scanops.builders.programs import parse_ptxas, run_all
from scanops.builders.toolchain import Program, find_cxx
from scanops.builders.toolchain import cuda_compilers as require
from scanops.codegen.headers import FOLDER as HEADERS
from scanops.emulator import HEADER_DIRECTORY, HOST_SOURCE
from scanops.errors import BuildFailure
from scanops.forks import import_late

_INCLUDES = re.compile(r'^\s*#\s*include\s*[<"]cuda_runtime\.h[>"]', re.MULTILINE)
_HOST_OBJECTS: dict[tuple[Program, tuple[str, ...], str], bytes] = {}  # by all that the emulator's object follows from
_TORCH_LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-lc10")
_C_LIBRARIES = ("-nodefaultlibs", "-lc", "-lm", "-lgcc")  # reading libstdc++ as well takes a third of the link's time


def build(request: BuildRequest, directory: Path) -> BuildReport:
    """Compile kernel.cu in ``directory`` by nvcc, or by the host compiler for ``cpu`` and ``host``, and link it.

    Raises BuildFailure and UnsupportedRequest.
    """
    source, compiled = directory / "kernel.cu", ["-o", str(directory / "kernel.o")]
    if request.target not in (CPU, HOST):
        toolkit, cxx, runtime = require(request.target)
        versions = {"route": "nvcc", "nvcc": toolkit.version, "cxx": cxx.version}
        compiler = f"nvcc {toolkit.version}"
        command = [str(toolkit.path), "-ccbin", str(cxx.path), "-c", "-Xcompiler", "-fPIC", "-Xptxas=-v"]
        command += [f"-I{HEADERS}", *request.flags, str(source)]
        # The runtime is named as a file: the pip toolkit has no libcudart.so link. What is recorded is its soname.
        libraries = [str(runtime)]
    else:
        cxx = find_cxx()
        versions, compiler = {"route": request.target, "cxx": cxx.version}, cxx.version
        if request.target == CPU:
            words, libraries = (
                [f"-I{HEADER_DIRECTORY}", f"-I{HEADERS}"],
                _host_object(request, directory),
            )
        else:
            words, libraries, versions["torch"] = _against_torch()
        # By its name alone: g++ writes the name into the library, for the checks of -fsanitize.
        command = [str(cxx.path), "-fPIC", *request.flags, *words, "-x", "c++", "-c", source.name]
    link = [str(cxx.path), "-shared", str(directory / "kernel.o"), *LINK_FLAGS, *libraries]
    library = directory / "kernel.so"
    log = run_all(request, compiler, directory, [[*command, *compiled], [*link, "-o", str(library)]])
    return BuildReport(file=library, seconds=0.0, resources=parse_ptxas(log), toolchain=versions)


def _against_torch() -> tuple[list[str], list[str], str]:
    """Return the flags and the libraries of the native call path, and the version of torch.

    It is built against the headers of torch and Python, which must be installed. The libraries that it is linked with
    are in the process before it is loaded, so no search path is recorded.
    """
    torch = import_late("torch")
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise BuildFailure(
            "build the native call path",
            allowed="a Python with its headers",
            value=f"no Python.h in {python}",
            hint="install them (python3-dev), or go on: calls are served from Python",
        )
    package = Path(torch.__file__).parent
    headers = (package / "include", package / "include/torch/csrc/api/include", python)
    words = [f"-ffile-prefix-map={package}=torch"]  # torch's checks name their files
    words += [f"-isystem{folder}" for folder in headers]
    # Python itself has what is not in a library.
    return words, [f"-L{package / 'lib'}", "-Wl,-z,undefs", *_TORCH_LIBRARIES], str(torch.__version__)


def _host_object(request: BuildRequest, directory: Path) -> list[str]:
    """Return the emulator's object in ``directory``, to link with: compiled there, or copied from an earlier build.

    Whatever else a kernel calls is in the C libraries of the process: to read them takes two thirds of the link's time.
    A text that does not use the emulator is linked with them. Raises BuildFailure when the compiler refuses it.
    """
    if not _INCLUDES.search(request.source):
        return [*_C_LIBRARIES]
    cxx, made = find_cxx(), directory / "host.o"
    follows_from = cxx, request.flags, digest_of("emulator")
    if follows_from in _HOST_OBJECTS:
        made.write_bytes(_HOST_OBJECTS[follows_from])
    else:
        command = [str(cxx.path), "-c", "-fPIC", *request.flags, str(HOST_SOURCE), "-o", str(made)]
        run_all(request, cxx.version, directory, [command])
        _HOST_OBJECTS[follows_from] = made.read_bytes()
    return [str(made), "-nodefaultlibs", "-lgcc", "-Wl,-z,undefs"]
