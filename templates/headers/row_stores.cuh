// Stores of results as vectors.
#pragma once

// Store an access: as a whole, or those of its items that are in the row.
template <class Item>
__device__ __forceinline__ void store_access(Item* to, const Vector<Item, kItemsPerStore>& y, Position position,
                                             Position end) {
    if (kBoundaryItems == 0 || is_whole(position, kItemsPerStore, end)) {
        *reinterpret_cast<Vector<Item, kItemsPerStore>*>(to) = y;
    } else {
#pragma unroll
        for (int k = 0; k < kItemsPerStore; ++k)
            if (is_inside(position + place_of(k, kItemsPerStore), end)) to[k] = y.item[k];
    }
}

// Store the results of access j.
__device__ __forceinline__ void store(const RowPart& part, const Row& row, int j, const Results& r) {
    const int access = kThreadRuns == 1 ? j : 0;
    const Position step = along(j * part.step);
    for_each_output([&](auto* to, auto& y) { store_access(to + step, y[access], part.at(j), part.end); }, row.to, r);
}
