from __future__ import annotations

from scanops.artifact import Resources
from scanops.builders.programs import parse_ptxas

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'scan_kernel' for 'sm_90'
ptxas info    : Function properties for scan_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4096 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'clear_kernel' for 'sm_90'
ptxas info    : Function properties for clear_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 128 registers, used 0 barriers, 400 bytes cmem[0]
"""


def test_the_largest_over_the_kernels() -> None:
    assert parse_ptxas(LOG) == Resources(
        registers=128, shared_bytes=4096, stack_bytes=16, spill_store_bytes=8, spill_load_bytes=12
    )


def test_no_shared_memory_is_zero_and_silence_is_none() -> None:
    tail = parse_ptxas(LOG[LOG.index("ptxas info    : Compiling entry function 'clear") :])
    assert tail is not None and tail.shared_bytes == 0
    assert parse_ptxas("warning: nothing") is None
