// Asynchronous copies of a tile, by rows.
#pragma once

// Copy this lane's part of a tile of all operands.
__device__ __forceinline__ void copy(Ring& ring, int stage, const Sources& from, Position live) {
    for_each_operand([&](auto layout, auto& slots,
                         auto& x) { copy_rows<(kUneven || layout.kShift > 0)>(slots[stage], x, live - layout.kShift); },
                     ring, from);
}
