"""Runs exported files in a process that has torch and no scanops: ``python alone.py JOBS``.

JOBS is a file of torch.save: for each exported file its path, the libraries that its CUDA was compiled to for a CPU,
and the calls to make. Their results are written to JOBS with .out appended.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import types
from pathlib import Path
from typing import Any

for hidden in ("scanops", "codegen", "jinja2"):
    sys.modules[hidden] = None  # type: ignore[assignment]  # whoever imports it gets a ModuleNotFoundError

import torch  # noqa: E402
import torch.utils.cpp_extension  # noqa: E402


def load(path: str, libraries: dict[str, str] | None = None) -> Any:
    """Import an exported file; with ``libraries`` for a CPU, by text, these in place of what load_inline builds."""

    def built(name: str, *, cpp_sources: list[str], cuda_sources: list[str], build_directory: str, **rest: Any) -> None:
        assert rest.pop("extra_cuda_cflags") == ["-O3", "-std=c++17"] and rest == {"is_python_module": False}
        assert cpp_sources == [""] and name.isidentifier()
        shutil.copy((libraries or {})[cuda_sources[0]], Path(build_directory) / f"{name}.so")

    if libraries is not None:
        torch.utils.cpp_extension.load_inline = built
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if libraries is not None:
        module.DEVICE = "cpu"
        torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(multi_processor_count=3)
        torch.cuda.get_device_capability = lambda device: (99, 0)
        module._current_device = lambda: None
        module._raw_stream = lambda device: 0
    return module


def call(module: Any, dim: float, tensors: tuple[Any, ...]) -> Any:
    """Return the result of one call, or the text of its error."""
    try:
        return module.ModelNew(dim)(*tensors) if hasattr(module, "ModelNew") else module.custom_kernel(*tensors)
    except (IndexError, RuntimeError, TypeError, ValueError) as problem:
        return f"{type(problem).__name__}: {problem}"


def traced(module: Any, dim: float, tensors: tuple[Any, ...]) -> list[str]:
    """Return the names of the Python functions that the second call of a model runs."""
    names: list[str] = []
    model = module.ModelNew(dim)
    model(*tensors)
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    model(*tensors)
    sys.setprofile(None)
    return names


if __name__ == "__main__":
    results = []
    for path, libraries, calls in torch.load(sys.argv[1], weights_only=False):
        module = load(path, libraries)
        given = [call(module, *each) for each in calls]
        results.append((given, traced(module, *calls[0]) if hasattr(module, "ModelNew") else []))
    torch.save(results, f"{sys.argv[1]}.out")
