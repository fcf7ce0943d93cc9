//@ store_access
// Store an access: as a whole, or those of its items that are in the row.
template <class Item>
__device__ __forceinline__ void store_access(Item* to, const Vector<Item, kOutItems>& y, Position position,
                                             Position end) {
    if (kBoundary == 0 || is_whole(position, kOutItems, end)) {
        *reinterpret_cast<Vector<Item, kOutItems>*>(to) = y;
    } else {
#pragma unroll
        for (int k = 0; k < kOutItems; ++k)
            if (is_inside(position + place_of(k, kOutItems), end)) to[k] = y.item[k];
    }
}

//@ store
// Store the results of access j.
__device__ __forceinline__ void store(const Part& part, const Row& row, int j, const Results& r) {
    const int access = kRuns == 1 ? j : 0;
    const Position step = along(j * part.step);
    for_each_output([&](auto* to, auto& y) { store_access(to + step, y[access], part.at(j), part.end); }, row.to, r);
}

