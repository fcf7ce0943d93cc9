"""Processes of their own: programs compiled or exported ahead of time, and DTensors of two real processes."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import scanops
from tests.scripts import ROOT, ran
from tests.torch_integration.columns import distributed, whole
from tests.torch_integration.compilers import QUICKLY
from tests.torch_integration.rows import DIM, ROWS, close, step, weights

LOADS = """
import sys
import torch, scanops
folder, package, exported, traced = sys.argv[1:]
x, keep, expected = torch.load(f"{folder}/data.pt")
aot, graph = torch._inductor.aoti_load_package(package), torch.export.load(exported).module()
for program in (aot, graph, torch.jit.load(traced)):
    torch.testing.assert_close(tuple(program(x, keep)), expected)
    with scanops.emulate(), scanops.policy("never"):
        try:
            program(x, keep)
        except RuntimeError as problem:  # the operation asks for kernels, like any call; AOTInductor may print why
            print(problem, file=sys.stderr)
        else:
            raise AssertionError("who has computed this?")
print("right")
"""


class Model(torch.nn.Module):
    """A scan with one result and one with two, between what a compiler fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.scan = scanops.nn.LinearRecurrence(dim=1)
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.0, 6))

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Results, indices and what goes on from lines."""
        h = self.scan(torch.sigmoid(x), x * self.weight)
        (values, indices), final = scanops.cummax(h * 2, 1, mask=keep, initial=0.5, return_final=True)
        return values + 1, indices, final


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_packages_run_where_scanops_is_imported(tmp_path: Path) -> None:
    """AOTInductor's, torch.export's and torch.jit's, with more lines than they were made with."""
    model, rows = Model().eval(), torch.export.Dim("rows", min=2)
    generator = torch.Generator().manual_seed(0)
    x, other = torch.rand(3, 6, generator=generator), torch.rand(5, 6, generator=generator)
    with torch.no_grad():
        program = torch.export.export(model, (x, x > 0.3), dynamic_shapes=({0: rows}, {0: rows}))
        package = str(tmp_path / "model.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=QUICKLY)
        torch.export.save(program, tmp_path / "exported.pt2")
        torch.jit.trace(model, (x, x > 0.3)).save(tmp_path / "traced.pt")
        torch.save((other, other > 0.3, model(other, other > 0.3)), tmp_path / "data.pt")
    told = (tmp_path, package, tmp_path / "exported.pt2", tmp_path / "traced.pt")
    done = ran(sys.executable, "-c", LOADS, *told, SCANOPS_STORE=str(tmp_path / "store"))
    assert done.stdout.strip() == "right"
    assert done.stderr.count("under the policy never") >= 3


PROCESSES = 2
SHAPE = (4, 3, 5)  # uneven where 3 or 5 are sharded


def each_row(mesh: dist.DeviceMesh) -> None:
    """Lines are shared out unevenly between the processes."""
    for row in ROWS.values():
        distributed(row)


def every_dimension(mesh: dist.DeviceMesh) -> None:
    """Of a tensor of three: shards stay where they are, and ranks exchange states of the scanned one alone."""
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(SHAPE, generator=generator, dtype=torch.float64) for _ in range(2))
    scans: tuple[Callable[..., torch.Tensor], ...] = (
        lambda a, b: scanops.linear_scan(a, b, scanned),
        lambda a, b: scanops.cumsum(b, scanned, mask=a),
    )
    for scanned, sharded, call in itertools.product(range(3), range(3), scans):
        (expected,), wanted = step(lambda a, b, call=call: (call(a, b),), (a, b))
        given = [distribute_tensor(each, mesh, [Shard(sharded)]).requires_grad_() for each in (a, b)]
        with CommDebugMode() as sent:
            found = call(*given)
        apart = sharded != scanned
        assert (sent.get_total_counts() == 0) == apart
        assert isinstance(found, DTensor)
        assert found.placements == (Shard(sharded),)
        incoming = distribute_tensor(weights(expected), mesh, found.placements)
        close(whole((found, *torch.autograd.grad(found, given, incoming))), (expected, *wanted))
    summed = DTensor.from_local(b, mesh, [Partial("sum")])  # what each process has is a part of each item
    torch.testing.assert_close(whole((scanops.cumsum(summed, 1),))[0], PROCESSES * torch.cumsum(b, 1))


def kernels(mesh: dist.DeviceMesh) -> None:
    """Each process runs its own on its own lines; a tensor that is none of theirs is refused."""
    from torch.distributed.tensor import Shard, distribute_tensor

    (x,) = ROWS["`cumsum`"].tensors()
    with scanops.emulate():
        found = scanops.cumsum(distribute_tensor(x, mesh, [Shard(0)]), DIM)
    torch.testing.assert_close(whole((found,))[0], torch.cumsum(x, DIM))
    with pytest.raises(scanops.errors.UnsupportedRequest, match="must all be DTensors"):
        scanops.cumsum(distribute_tensor(x, mesh, [Shard(0)]), DIM, mask=torch.ones(3, 5))


def work(rank: int, folder: str) -> None:
    """What one process does, and its end.

    DTensor keeps the mesh, and so the threads of its group, past ``destroy_process_group``: one that frees a tensor
    while the interpreter ends asks for its lock, and the process aborts (pytorch#179291). So nothing is torn down.
    """
    from torch.distributed.tensor import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for check in (each_row, every_dimension, kernels):
        check(mesh)
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def test_sharded_over_two_processes(tmp_path: Path) -> None:
    """Forked from a process that imports torch once."""
    ran(sys.executable, "-m", "tests.torch_integration.test_processes", tmp_path, PYTHONPATH=str(ROOT))


if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, (sys.argv[1],), PROCESSES, start_method="fork")
