"""Runs exported files in a process that has torch and no scanops: ``python alone.py JOBS``.

JOBS is a file of torch.save: for each file its path, the libraries that its texts were compiled to, if they are for a
CPU, and the calls to make. What they gave is written to JOBS with .out behind its name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class Hidden:
    """Finds nothing of scanops, whatever is installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] in ("scanops", "codegen", "jinja2"):
            raise ModuleNotFoundError(f"{name} is hidden")


sys.meta_path.insert(0, Hidden())  # type: ignore[arg-type]

import torch  # noqa: E402
import torch.utils.cpp_extension  # noqa: E402


def load(path: str, libraries: dict[str, str] | None) -> ModuleType:
    """The file as a module; with libraries, on a CPU, in place of what load_inline would build."""

    def built(name: str, *, cpp_sources: list[str], cuda_sources: list[str], build_directory: str, **rest: Any) -> None:
        assert rest.pop("extra_cuda_cflags") == ["-O3", "-std=c++17"] and rest == {"is_python_module": False}
        assert "__global__" in cuda_sources[0] and cpp_sources == [""]
        shutil.copy(libraries[name], Path(build_directory) / f"{name}.so")  # type: ignore[index]

    if libraries is not None:
        torch.utils.cpp_extension.load_inline = built
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if libraries is not None:
        module.DEVICE = "cpu"
        module._multiprocessors = lambda index: 3
        module._on = lambda device: module._HERE
        module._stream = lambda device: 0
    return module


def call(module: Any, job: dict[str, Any]) -> Any:
    """What one call gives, or the words of what it raises."""
    try:
        if hasattr(module, "custom_kernel"):
            return module.custom_kernel(*job["tensors"])
        model = module.ModelNew(job["dim"])
        return traced(lambda: model(*job["tensors"])) if "traced" in job else model(*job["tensors"])
    except (IndexError, RuntimeError, TypeError, ValueError) as problem:
        return f"{type(problem).__name__}: {problem}"


def traced(run: Any) -> list[str]:
    """Return the names of the Python functions that a repeated call runs."""
    names: list[str] = []
    run()
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    run()
    sys.setprofile(None)
    return names


def main(jobs: str) -> None:
    for name in ("scanops", "jinja2"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
            raise AssertionError(f"{name} is not hidden")
    results = []
    for file in torch.load(jobs, weights_only=False):
        module = load(file["path"], file["libraries"])
        results.append([call(module, job) for job in file["calls"]])
    assert not [name for name in sys.modules if name.split(".")[0] == "scanops"]
    torch.save(results, f"{jobs}.out")


if __name__ == "__main__":
    main(sys.argv[1])
