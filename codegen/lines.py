"""Many lines or few: the one thing about a tensor's other dimensions that a plan depends on.

Apart from the planner, so that a call on a kernel that is already built loads no plan.
"""

from __future__ import annotations

__all__ = ["SPLIT_LENGTH", "are_few"]

SPLIT_LENGTH = 65536  # a row below this is read by one block in less time than blocks take to exchange totals


def are_few(lines: int, length: int, inner: int, multiprocessors: int) -> bool:
    """Whether this many lines leave a GPU idle when each is one block's, or one of 32 columns of a block.

    False where no plan would differ, so that one kernel serves.
    """
    if inner > 1:
        # Narrower blocks waste half of each access: 1 x 32768 x 8192 has 0.89 of a copy as 256 blocks of 32 columns and
        # 0.56 as 1024 of 8.
        return lines // inner * -(-inner // 32) < multiprocessors // 2
    return length > SPLIT_LENGTH and lines < 2 * multiprocessors  # two waves: below it the tail of the last is felt
