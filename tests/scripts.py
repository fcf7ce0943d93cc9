"""Commands in processes of their own, and files that are no modules of a package: the examples of docs/."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]

# Forks a child for each program, so that torch, and what its functions import at their first call, is imported once,
# and templates and the emulator are compiled once. The descriptors of the child's output are files in its folder.
SERVER = """
import json, os, pathlib, shutil, sys, tempfile, traceback, torch, torch._dynamo, torch.distributed.tensor, scanops
from scanops.build_request import request_of
from scanops.codegen.kernel_key import KernelKey
from scanops.builders import build
with tempfile.TemporaryDirectory() as folder:
    key = KernelKey(scanops.ScanSpec.parse("sum-f32-n4"), "cpu")
    shutil.which("g++") and build(request_of(key), pathlib.Path(folder))
for line in sys.stdin:
    folder, *programs = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600), number)
        status, names = 0, {"__name__": "__main__"}
        try:
            for at, text in programs:
                sys.argv, names["__file__"] = [at], at
                sys.path.insert(0, os.path.dirname(at) if os.path.isabs(at) else folder)
                sys.stdout.write("\\0")  # what programs before print is no result of the last one
                exec(compile(text, at, "exec"), names)
        except BaseException as end:
            if not isinstance(end, SystemExit) or end.code:
                traceback.print_exc()
                status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Forked = Callable[..., str]


@contextmanager
def forks() -> Iterator[Forked]:
    """A function that runs programs, each a name and its text, one after another in a new process in a folder.

    They have to succeed; what the last one printed is returned. Torch and scanops are imported before they begin.
    """
    # Whoever asks CUDA itself whether there is a GPU cannot use one after a fork.
    env = os.environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdin and server.stdout

        def run(folder: Path, *programs: tuple[str, str]) -> str:
            assert server.stdin and server.stdout
            print(json.dumps([str(folder), *programs]), file=server.stdin, flush=True)
            assert int(server.stdout.readline()) == 0, (folder / "stderr").read_text()
            return (folder / "stdout").read_text().rpartition("\0")[2]

        yield run
        server.stdin.close()


def loaded(path: str) -> ModuleType:
    """The module of a file, named from the project's root; compilers and pickle find it again by its name."""
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "_"), ROOT / path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(*words: object, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has to succeed, in a folder and with changes to the environment; what it printed is kept."""
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
