"""Compiled and exported: one operation in the graph, for one length or for all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

import scanops
from tests.torch_integration.comparing import NO_GRADIENT, YES, agree, close, floating, gradients, leaves
from tests.torch_integration.rows import LENGTH, Row, Tensors

__all__ = ["backwards_compiled", "compiled", "compiled_for_all_lengths", "exported", "traced"]


def scans_of(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if "scanops" in str(node.target)]


def compiled(row: Row) -> str:
    """One operation in the graph forwards, one backwards, and no break."""
    forwards: list[list[str]] = []
    backwards: list[list[str]] = []

    def noting(seen: list[list[str]]) -> Callable[..., Any]:
        def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
            seen.append(scans_of(graph))
            return make_boxed_func(graph.forward)

        return compiler

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=noting(forwards), bw_compiler=noting(backwards))
    function = torch.compile(row, fullgraph=True, backend=backend, dynamic=False)
    tensors, wanted = leaves(row)
    found, expected = function(*tensors), row(*tensors)
    agree(found, expected)
    assert [len(each) for each in forwards] == [1]
    if wanted:
        close(gradients(found, wanted), gradients(expected, wanted))
        assert [len(each) for each in backwards] == [1]
    return YES


def compiled_for_all_lengths(row: Row) -> str:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(row, fullgraph=True, backend=counter, dynamic=True)
    for length in (LENGTH, 7, 12, 33):
        tensors, wanted = leaves(row, length)
        found, expected = function(*tensors), row(*tensors)
        agree(found, expected)
        if wanted:
            close(gradients(found, wanted), gradients(expected, wanted))
    assert counter.frame_count == 1
    return YES


def backwards_compiled(row: Row) -> str:
    """A backward pass of plain code as a graph of compiled autograd: of one operation, whatever a node is of."""
    if not floating(row.tensors()):
        return NO_GRADIENT
    tensors, wanted = leaves(row)
    expected = gradients(row(*tensors), wanted)
    graphs: list[list[str]] = []

    def noting(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(scans_of(graph))
        return make_boxed_func(graph.forward)

    def compiler(graph: torch.fx.GraphModule) -> Any:
        return torch.compile(graph, fullgraph=True, backend=aot_autograd(fw_compiler=noting))

    torch.compiler.reset()
    with scanops.emulate(), scanops.policy("fallback"), warnings.catch_warnings():  # the nodes that kernels have
        warnings.simplefilter("ignore", RuntimeWarning)
        results = row(*tensors)
        with compiled_autograd._enable(compiler):
            found = gradients(results, wanted)
    close(found, expected)
    assert [len(each) for each in graphs] == [1]
    return YES


class _Module(torch.nn.Module):
    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        return self.row(*tensors)


def exported(row: Row) -> str:
    """For all lengths, decomposed to what a runtime sees."""
    tensors = row.tensors()
    length = torch.export.Dim("length", min=2)
    shapes = tuple({d: length for d, size in enumerate(each.shape) if size == LENGTH} for each in tensors)
    program = torch.export.export(_Module(row), tensors, dynamic_shapes=(shapes,)).run_decompositions()
    assert len(scans_of(program.graph_module)) == 1
    other = row.tensors(9)
    agree(program.module()(*other), row(*other))
    return YES


def traced(row: Row) -> str:
    """One operation, which other tensors are given to, of other lengths too, and which has gradients."""
    function = torch.jit.trace(row.__call__, row.tensors(), check_trace=False)
    assert str(function.graph).count("scanops::scan") == 1
    for length in (LENGTH, 9):
        tensors, wanted = leaves(row, length, seed=1)
        found, expected = function(*tensors), row(*tensors)
        agree(found, expected)
        if wanted:
            close(gradients(found, wanted), gradients(expected, wanted))
    return YES
