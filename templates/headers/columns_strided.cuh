// Operands with strides of their own.
#pragma once

// An operand with strides of its own.
template <typename Item>
__device__ __forceinline__ Source<Item> placed(const Item* begin, const Place& at, const Geometry& geometry,
                                               int operand, Position length, long long lines) {
    const Strides& strides = geometry.operand[operand];
    const long long step = strides.step;
    const Item* const last = begin + line_offset(lines - 1, geometry, strides) + (length - 1) * step;
    const Item* const line = begin + line_offset(at.line, geometry, strides);
    return {line + memory_index(at.first, 1, length) * step, kReverse ? -step : step, begin, last + 1};
}

// The items of the thread's columns in an operand with one for the whole line; the columns lie along one dimension.
template <typename Item>
__device__ __forceinline__ Access<Item> line_items(const Item* begin, const Place& at, const Geometry& geometry,
                                                   int operand) {
    const Strides& strides = geometry.operand[operand];
    const Item* const first = begin + line_offset(at.line, geometry, strides);
    const long long step = kSpacing * strides.stride[geometry.rank - 1];
    Access<Item> items = {};
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
        if (!kPartialColumns || at.there > c) items.column[c] = first[c * step];
    return items;
}

// `before`: rows in front of those that the block scans, of `length` of each of the `lines`.
template <class Layout, class Item>
__device__ __forceinline__ Source<Item> source_of(Layout layout, const Item* begin, const Place& at,
                                                  const Geometry& geometry, long long before, Position length,
                                                  long long lines, long long items) {
    if constexpr (layout.kIsDense)
        return dense<layout.kIsFlat>(begin, at, items);
    else
        return placed(begin + before * geometry.operand[layout.kGeometry].step, at, geometry, layout.kGeometry,
                      items_in(length), lines);
}
