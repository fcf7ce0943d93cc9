"""Building through ``torch.utils.cpp_extension.load_inline``.

load_inline takes its compilers from module globals, from the environment and from PATH, and so may not run twice at
once in a process. It also loads what it builds, which serves as the first test-load.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from scanops import environment
from scanops.build_request import LINK_FLAGS, BuildReport, BuildRequest
from scanops.builders.programs import build_failure, parse_ptxas
from scanops.builders.toolchain import CudaToolkit, Program, cuda_compilers, ensure_runtime, find_ninja
from scanops.codegen.headers import FOLDER as HEADERS
from scanops.errors import MissingCompiler
from scanops.forks import FORK_LOCK, delay_forks, import_late

_MODULE = "torch.utils.cpp_extension"
_COUNT = itertools.count()
_ONE_AT_A_TIME = threading.Lock()  # held inside delay_forks(): no child finds it held


def require(target: str) -> tuple[CudaToolkit, Program, Path, Program]:
    """Return the compilers, the runtime and the ninja with which load_inline builds for ``target``.

    Raises MissingCompiler for one that is missing, or a torch that refuses CUDA sources, and what ``cuda_compilers``
    raises.
    """
    ninja = find_ninja()
    try:
        with FORK_LOCK, _quiet():
            cuda = import_late("torch").version.cuda
            if cuda is not None:
                import_late(_MODULE)
    except ImportError as problem:
        raise _unusable(f"no usable torch: {problem}") from problem
    if cuda is None:
        raise _unusable("this torch is built without CUDA")
    return *cuda_compilers(target), ninja


def build(request: BuildRequest, directory: Path) -> BuildReport:
    """Call load_inline with the compilers that scanops finds, whatever it would find by itself."""
    toolkit, cxx, runtime, ninja = require(request.target)
    torch, cpp_extension = import_late("torch"), import_late(_MODULE)
    ensure_runtime(runtime.name, runtime)
    nvcc = _logging_nvcc(toolkit.path, directory)
    link = _for_ninja(f"-L{_folder_to_link(runtime, directory)}")
    changes: dict[str, str | None] = {
        "PATH": f"{_clean_ninja(ninja.path, directory)}{os.pathsep}{environment.search_path()}",
        "CXX": str(cxx.path),
        "CC": str(cxx.path),  # becomes nvcc's -ccbin
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",  # the C interface of kernels meets none of torch's C++
        "TORCH_NO_COMPILER_WRAPPER": "1",  # the store is the cache
        "PYTORCH_NVCC": _for_ninja(str(nvcc)),
        "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES": "1",
    }
    # The toolkit that was found in the place of torch's CUDA_HOME, which it computes once, at import.
    home = _replaced(cpp_extension, "CUDA_HOME", str(toolkit.root))
    with delay_forks(), _ONE_AT_A_TIME, _quiet(), environment.overlaid(changes), home:
        try:
            library = cpp_extension.load_inline(
                # A name used twice would be built as name_v1; the folder, not the name, keeps builds apart.
                name=f"scanops_{request.identity[:16]}_{next(_COUNT)}",
                build_directory=str(directory),
                is_python_module=False,
                no_implicit_headers=True,
                verbose=False,
                cpp_sources=[""],
                cuda_sources=[request.source],
                extra_cuda_cflags=[*request.flags, "-Xptxas=-v"],
                extra_include_paths=[str(HEADERS)],
                extra_ldflags=[*LINK_FLAGS, link],
            )
        except (RuntimeError, OSError) as problem:
            # In terms of what the user knows: the source that is kept, and the real nvcc.
            said = str(problem).replace(str(directory / "cuda.cu"), str(directory / "kernel.cu"))
            step, printed = _find_failed_step(said.replace(str(nvcc), str(toolkit.path)))
            raise build_failure(request, f"nvcc {toolkit.version}", step, printed, directory) from problem
    resources = parse_ptxas((directory / "nvcc.log").read_text(encoding="utf-8", errors="replace"))
    versions = {"nvcc": toolkit.version, "cxx": cxx.version, "ninja": ninja.version}
    versions |= {"route": "load_inline", "torch": str(torch.__version__)}
    return BuildReport(file=Path(library), seconds=0.0, resources=resources, toolchain=versions)


def _unusable(why: str) -> MissingCompiler:
    hint = "install a torch built for CUDA, or let nvcc or NVRTC build: SCANOPS_BUILDER=nvcc, or nvrtc"
    return MissingCompiler("use load_inline", allowed="a torch built for CUDA", value=why, hint=hint)


def _clean_ninja(ninja: Path, directory: Path) -> Path:
    """The folder of a ninja that gives compilers the environment that other builders give them.

    They keep their temporary files in the build folder: nvcc passes the names of these to a shell.
    """
    folder = directory / "ninja"
    folder.mkdir()
    variables = " ".join(
        shlex.quote(f"{name}={value}") for name, value in environment.for_compilers(TMPDIR=str(directory)).items()
    )
    script = folder / "ninja"
    script.write_text(f'#!/bin/sh\nexec /usr/bin/env -i {variables} {shlex.quote(str(ninja))} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    return folder


def _logging_nvcc(nvcc: Path, directory: Path) -> Path:
    """An nvcc that keeps its output in nvcc.log.

    load_inline drops the output of a compiler that succeeds, and with it the number of registers.
    """
    script = directory / "nvcc"
    script.write_text(
        f'#!/bin/sh\n{shlex.quote(str(nvcc))} "$@" > "$0.log" 2>&1\nstatus=$?\ncat "$0.log"\nexit $status\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    return script


def _folder_to_link(runtime: Path, directory: Path) -> Path:
    """A folder where ``-lcudart`` finds the runtime: the pip toolkit has libcudart.so.13 and no libcudart.so."""
    if (runtime.parent / "libcudart.so").exists():
        return runtime.parent
    folder = directory / "cudart"
    folder.mkdir()
    (folder / "libcudart.so").symlink_to(runtime)
    return folder


def _find_failed_step(text: str) -> tuple[str, str]:
    """The command that failed and what it printed, from ninja's output."""
    step = re.search(r"^FAILED:.*\n(.*)\n([\s\S]*)", text, re.MULTILINE)
    return (step[1], step[2].replace("ninja: build stopped: subcommand failed.", "")) if step else ("load_inline", text)


def _for_ninja(text: str) -> str:
    """One word of a command in a ninja file, which a shell reads in turn."""
    return shlex.quote(text).replace("$", "$$")


@contextmanager
def _replaced(thing: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute of a module or a logger another value for the length of a ``with`` block."""
    before = getattr(thing, name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        setattr(thing, name, before)


def _quiet() -> AbstractContextManager[None]:
    """Silence what torch logs about CUDA_HOME and compilers; a failed build is reported as an error."""
    return _replaced(logging.getLogger(_MODULE), "disabled", True)
