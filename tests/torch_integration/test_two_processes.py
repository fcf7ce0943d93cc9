"""DTensors of two real processes: scans of their own where no line is cut, of a gathered tensor where lines are."""

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
from tests.torch_integration.columns import distributed, whole
from tests.torch_integration.comparing import close, step, weights
from tests.torch_integration.rows import DIM, ROWS

PROCESSES = 2
SHAPE = (4, 3, 5)  # uneven where 3 or 5 are sharded


def each_row(mesh: dist.DeviceMesh) -> None:
    """Lines are shared out unevenly between the processes."""
    for row in ROWS.values():
        distributed(row)


def every_dimension(mesh: dist.DeviceMesh) -> None:
    """Of a tensor of three: but for the scanned one the shards stay where they are."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
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
        assert found.placements == ((Shard(sharded),) if apart else (Replicate(),))
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
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
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


def test_sharded_over_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=PROCESSES)
