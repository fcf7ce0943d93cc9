"""What compilers and exporters make of a row: one operation in the graph, for one length or for all."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

import scanops
from tests.torch_integration.rows import LENGTH, Row, Tensors, close, floating, hold

# Options of inductor for code that runs once: compiling it takes a third of the time.
QUICKLY: dict[str, Any] = {
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}


def scans_of(graph: torch.fx.GraphModule) -> list[str]:
    """Return the operations of a graph that are scans."""
    return [str(node.target) for node in graph.graph.nodes if "scanops" in str(node.target)]


def noting(graphs: list[list[str]]) -> Callable[..., Any]:
    """Return a compiler that notes the scans of each graph and runs it as it is."""

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(scans_of(graph))
        return make_boxed_func(graph.forward)

    return compiler


def following(graphs: list[list[str]]) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return what to enter around a backward pass for compiled autograd, whose graphs' scans are noted."""
    backend = aot_autograd(fw_compiler=noting(graphs))
    return lambda: compiled_autograd._enable(lambda graph: torch.compile(graph, fullgraph=True, backend=backend))


def compiled(row: Row) -> None:
    forwards: list[list[str]] = []
    backwards: list[list[str]] = []
    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=noting(forwards), bw_compiler=noting(backwards))
    hold(torch.compile(row, fullgraph=True, backend=backend, dynamic=False), row, row.tensors())
    assert [len(each) for each in forwards] == [1]
    assert [len(each) for each in backwards] == [1] * bool(floating(row.tensors()))


def compiled_for_all_lengths(row: Row) -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(row, fullgraph=True, backend=counter, dynamic=True)
    for length in (LENGTH, 7, 12, 33):
        hold(function, row, row.tensors(length))
    assert counter.frame_count == 1


def backwards_compiled(row: Row) -> None:
    """Follow the backward pass of plain code, with the nodes that kernels have."""
    graphs: list[list[str]] = []
    torch.compiler.reset()
    with scanops.emulate(), scanops.policy("fallback"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        hold(row, row, row.tensors(), backward=following(graphs))
    assert [len(each) for each in graphs] == [1]


class _Module(torch.nn.Module):
    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        return self.row(*tensors)


def exported(row: Row) -> None:
    """Export for all lengths, decomposed to what a runtime sees."""
    tensors = row.tensors()
    length = torch.export.Dim("length", min=2)
    shapes = tuple({d: length for d, size in enumerate(each.shape) if size == LENGTH} for each in tensors)
    program = torch.export.export(_Module(row), tensors, dynamic_shapes=(shapes,)).run_decompositions()
    assert len(scans_of(program.graph_module)) == 1
    other = row.tensors(9)
    close(program.module()(*other), row(*other), check_stride=True)


def traced(row: Row) -> None:
    with scanops.emulate():  # what kernels compute while it is traced is no constant
        function = torch.jit.trace(row.__call__, row.tensors(), check_trace=False)
    assert str(function.graph).count("scanops::") == 1
    for length in (LENGTH, 9):
        hold(function, row, row.tensors(length, seed=1))
