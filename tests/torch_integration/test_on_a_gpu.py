"""Each row of docs/pytorch.md in a CUDA graph: captured once, replayed with other data, compiled or not."""

from __future__ import annotations

import pytest
import torch

from tests.torch_integration.rows import ROWS


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_a_graph_is_replayed(name: str, compiled: bool) -> None:
    row = ROWS[name]
    tensors = tuple(each.cuda() for each in row.tensors())
    torch.compiler.reset()
    call = torch.compile(row, fullgraph=True, backend="aot_eager") if compiled else row
    for _ in range(2):  # builds what is to be built, and looks at offsets
        call(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(*tensors)
    others = row.tensors(seed=1)
    for place, other in zip(tensors, others, strict=True):
        place.copy_(other)
    graph.replay()
    for y, expected in zip(found, row(*others), strict=True):
        torch.testing.assert_close(y.cpu(), expected)
