// Operands with strides of their own.
#pragma once

// Items from one of a line to the next.
template <class Layout>
__device__ __forceinline__ long long step_of(Layout layout, const Geometry& geometry) {
    return layout.kIsDense || layout.kInRows ? 1 : geometry.operand[layout.kGeometry].step;
}

template <class Layout, class Item>
__device__ __forceinline__ const Item* first_access(Layout layout, const Item* from, long long line,
                                                    const RowPart& part, Position length, const Geometry& geometry) {
    if constexpr (layout.kIsDense) return dense(from, line, part, length);
    return from + line_offset(line, geometry, geometry.operand[layout.kGeometry]) +
           memory_index(part.first, kItemsPerLoad, length) * step_of(layout, geometry);
}

// The one item of an operand for a whole line. Past the last line it is that of another line: line_offset wraps around.
template <class Item>
__device__ __forceinline__ Item line_item(const Item* from, long long line, const Geometry& geometry, int operand) {
    return from[line_offset(line, geometry, geometry.operand[operand])];
}
