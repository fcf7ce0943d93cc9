// Loads of a thread's items of all operands to registers.
#pragma once

// All accesses of a thread.
__device__ __forceinline__ Accesses load(const RowPart& part, const Row& row, [[maybe_unused]] const Geometry& geometry) {
    Accesses a;
    for_each_operand(
        [&](auto layout, auto& to, auto* from) {
            if constexpr (layout.kIsRepeated)
                return;
            else if constexpr (layout.kIsShifted)
                read_realigned(to, part, from);
            else
                read_row<(layout.kIsDense || layout.kInRows)>(to, part, from, step_of(layout, geometry));
        },
        a, row.from);
    return a;
}
