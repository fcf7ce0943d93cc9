"""Launch epochs of a workspace, which begin again after 2^32 - 2 launches."""

from __future__ import annotations

import torch

import scanops
from scanops.runtime.workspaces import workspace

BYTES = 1 << 16  # of the workspace: more than the launches below take
LAST = 2**32 - 3  # finished launches, of which the next one has the last epoch


def test_epochs_begin_again_with_one() -> None:
    """Words that no launch has written are 0: no epoch may be 0, or a tile would not wait for the tiles before it."""
    x = torch.randint(-9, 9, (1, 70001), dtype=torch.int64)
    with scanops.emulate():
        scanops.cumsum(x, 1)
        words = workspace(x.device, 0, BYTES).view(torch.int64)
        words.zero_()
        words[0] = (LAST << 32) - 2**64  # as a signed number
        finished = []
        for length in (20011, 40013, 60017, 70001):  # each with tiles that those before it did not have
            found = scanops.cumsum(x[:, :length].contiguous(), 1)
            torch.testing.assert_close(found, x[:, :length].cumsum(1), rtol=0, atol=0)
            finished.append(int(words[0]) >> 32 & 0xFFFFFFFF)
    assert finished == [0, 1, 2, 3]
