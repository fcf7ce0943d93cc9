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
    if inner == 1 and length <= SPLIT_LENGTH:
        return False
    blocks = lines if inner == 1 else lines // inner * -(-inner // 32)
    return blocks < 2 * multiprocessors  # two waves: below it the tail of the last wave is felt
