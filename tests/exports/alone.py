"""Runs exported files in a process that has torch and no scanops.

``python alone.py JOBS``, on a CPU: JOBS is a file of torch.save: for each exported file its path, the library that its
CUDA was compiled to for a CPU, and the calls to make. Their results are written to JOBS with .out appended.

``python alone.py FILE PROBLEM``, on a GPU: exits with 0 where every call of FILE gives what torch does, bit for bit.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for hidden in ("scanops", "codegen", "jinja2"):
    sys.modules[hidden] = None  # type: ignore[assignment]  # whoever imports it gets a ModuleNotFoundError

import torch  # noqa: E402
import torch.utils.cpp_extension  # noqa: E402

# What the C++ of exported files includes of CUDA, for a CPU: a GPU with three multiprocessors.
HEADERS = {
    "cuda_runtime_api.h": """#pragma once
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
inline void cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { *value = 3; }
""",
    "c10/cuda/CUDAStream.h": """#pragma once
#include <cuda_runtime_api.h>
namespace c10::cuda {
struct CUDAStream { void* stream() const { return nullptr; } };
inline CUDAStream getCurrentCUDAStream() { return {}; }
}
""",
}


def load(path: str) -> Any:
    """Import an exported file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_a_cpu(paths: Sequence[str], libraries: Sequence[str], folder: Path) -> list[Any]:
    """Import exported files, their C++ built as one extension, as it takes seconds to read torch's headers.

    Each is in a namespace of its own, as its CUDA is in its library.
    """
    texts: list[str] = []

    def noted(name: str, *, cpp_sources: list[str], no_implicit_headers: bool, **rest: Any) -> Any:
        assert name.isidentifier() and no_implicit_headers and rest.pop("cuda_sources")
        flags = {"extra_cflags": ["-O1"], "extra_cuda_cflags": ["-O3", "-std=c++17"]}
        assert rest == {"functions": ["scan"], **flags}
        texts.extend(cpp_sources)
        return types.SimpleNamespace()

    modules = [load(path) for path in paths]
    for module in modules:
        module.load_inline = noted
        module.load()
    for name, text in HEADERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    lines = [line for text in texts for line in text.splitlines() if line.startswith("#include")]
    parts = [f"namespace file_{number} {{\n{text}\n}}" for number, text in enumerate(texts)]
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # has ninja
    built = torch.utils.cpp_extension.load_inline(
        "exported",
        cpp_sources=[*dict.fromkeys(lines), *(part.replace("at::kCUDA", "at::kCPU") for part in parts)],
        functions=[f"file_{number}::scan" for number in range(len(texts))],
        extra_include_paths=[str(folder)],
        extra_ldflags=list(libraries),
        build_directory=str(folder),
        no_implicit_headers=True,
    )
    for number, module in enumerate(modules):
        module.load().scan = getattr(built, f"file_{number}::scan")
    return modules


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


# ---- on a GPU


def drawn(shape: tuple[int, ...], choices: tuple[int, ...], seed: int) -> Any:
    """Draw small whole numbers, whose sums and products are exact in float32."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    indices = torch.randint(len(choices), shape, device="cuda", generator=generator)
    return torch.tensor(choices, dtype=torch.float32, device="cuda")[indices]


def exclusive(x: Any, dim: int) -> Any:
    """Scan as KernelBench's problem 92 does: a zero in front, the last item left out."""
    zero = torch.zeros_like(x.select(dim, 0).unsqueeze(dim))
    return torch.cumsum(torch.cat((zero, x), dim=dim).narrow(dim, 0, x.size(dim)), dim=dim)


SHAPE = (2048, 32768)  # of KernelBench's problems, with fewer rows
# name -> (values to draw from, shape, dims, the dtypes of masks, what torch says)
PROBLEMS: dict[str, tuple[Any, ...]] = {
    "cumprod": ((1, 1, -1), SHAPE, (-1,), (None,), torch.cumprod),
    "cumprod_any_dim": ((1, 1, -1), (1024, 1024), (0, 1), (None,), torch.cumprod),
    "cumsum_reverse": ((-1, 0, 1), SHAPE, (1,), (None,), lambda x, d: x.flip(d).cumsum(d).flip(d)),
    "masked_cumsum": ((-1, 0, 1), SHAPE, (1,), (torch.bool, torch.float32), torch.cumsum),
    "cumsum_exclusive": ((-1, 0, 1), SHAPE, (1,), (None,), exclusive),
}


def check(call: Callable[..., Any], right: Callable[..., Any], x: Any) -> None:
    """Run a scan at once, queued on a stream that is busy, and replayed by a graph, each time on other data."""
    assert torch.equal(call(x), right(x))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)  # long enough for a scan on another stream to read what x was
        x.neg_()
        y = call(x)
    side.synchronize()
    assert torch.equal(y, right(x)), "on another stream"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(x)
    x.neg_()
    graph.replay()
    assert torch.equal(y, right(x)), "in a graph"


def rows(scan: Callable[..., Any]) -> None:
    """Scan one row of each of GPU MODE's lengths, new or into a given output."""
    for length in (1023, 1024, 1025, 2048, 4096, 2**18, 2**20, 2**24, 2**28):
        x = drawn((length,), (-1, 0, 1), length)
        y, wanted = torch.empty_like(x), torch.cumsum(x, 0)
        assert torch.equal(scan(x), wanted) and scan((x, y)) is y and torch.equal(y, wanted), length


def hold(path: str, problem: str) -> None:
    """Run every call of a problem, which raises where one is wrong."""
    module = load(path)
    if problem == "gpumode":
        rows(module.custom_kernel)
    else:
        choices, shape, dims, masks, reference = PROBLEMS[problem]
        for dim in dims:
            model = module.ModelNew(dim)
            for dtype in masks:
                given = () if dtype is None else (drawn(shape, (0, 1), 2).to(dtype),)
                check(
                    lambda x, model=model, given=given: model(x, *given),
                    lambda x, dim=dim, given=given: reference(x * given[0] if given else x, dim),
                    drawn(shape, choices, 1),
                )


if __name__ == "__main__" and len(sys.argv) > 2:
    with torch.no_grad():
        hold(*sys.argv[1:])
elif __name__ == "__main__":
    jobs = torch.load(sys.argv[1], weights_only=False)
    paths, libraries = [job[0] for job in jobs], [job[1] for job in jobs]
    results = []
    for module, (_, _, calls) in zip(on_a_cpu(paths, libraries, Path(sys.argv[1]).parent), jobs, strict=True):
        given = [call(module, *each) for each in calls]
        results.append((given, traced(module, *calls[0]) if hasattr(module, "ModelNew") else []))
    torch.save(results, f"{sys.argv[1]}.out")
