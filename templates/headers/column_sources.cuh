// The operands of a block.
#pragma once

// The operands as a thread reads them. The block scans `length` of the `items` of each of the `lines`, those after the
// first `before`.
__device__ __forceinline__ Sources sources_of(const Operands<ConstPointerTo>& operands, const Place& at,
                                              const Geometry& geometry, Position length, long long lines,
                                              long long items, long long before = 0) {
    Sources from;
    for_each_operand(
        [&](auto layout, auto& x, auto* begin) {
            x = source_of(layout, begin, at, geometry, before, length, lines, lines * items);
            if constexpr (layout.kShift > 0) x = shift_source(x);
        },
        from, operands);
    return from;
}
