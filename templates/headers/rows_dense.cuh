// Operands that lie as the output.
#pragma once

struct Geometry {};  // all operands lie as the output

template <class Layout, class Item>
__device__ __forceinline__ const Item* first_access(Layout, const Item* from, long long line, const RowPart& part,
                                                    Position length, const Geometry&) {
    return dense(from, line, part, length);
}

// Items from one of a line to the next.
template <class Layout>
__device__ __forceinline__ long long step_of(Layout, const Geometry&) {
    return 1;
}
