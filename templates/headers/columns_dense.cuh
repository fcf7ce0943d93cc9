// Operands that lie as the output.
#pragma once

struct Geometry {};  // all operands lie as the output

template <class Layout, class Item>
__device__ __forceinline__ Source<Item> source_of(Layout layout, const Item* begin, const Place& at, const Geometry&,
                                                  long long, Position, long long, long long items) {
    return dense<layout.kIsFlat>(begin, at, items);
}
