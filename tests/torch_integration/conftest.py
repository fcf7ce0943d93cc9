"""A process group of one, for DTensor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

__all__ = ["group_of_one"]


@pytest.fixture(scope="session")
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()
