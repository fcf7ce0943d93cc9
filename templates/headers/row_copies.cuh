// Copies of a thread's vectors of a tile to a stage of the ring.
#pragma once

// Copy a thread's accesses of an operand that lie as those of the output, or whose items are strided.
template <class Layout, class Item>
__device__ __forceinline__ void copy_row(Layout layout, Vector<Item>* to, const RowPart& part, const Item* from,
                                         const Geometry& geometry) {
    constexpr bool dense = (layout.kIsDense || layout.kInRows) && layout.kShift == 0;
    const long long step = step_of(layout, geometry);
    read_row<dense, layout.kShift>(to, part, layout.kShift ? from + along(1) * step : from, step);
}

// Copy a thread's accesses of an operand that is aligned differently from the output.
template <class Layout, class Item>
__device__ __forceinline__ void copy_shifted(Layout layout, Vector<Item>* to, int& skew, const RowPart& part,
                                             const Item* from) {
    const int found = read_shifted(layout, to + part.lane, part, layout.kShift ? from + along(1) : from);
    if (part.lane == 0) skew = found;
}
