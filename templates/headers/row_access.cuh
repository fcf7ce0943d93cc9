// Vectors of a row, which are read and written whole, or item by item.
#pragma once

// Read an access whose items are `step` apart, those in the row: as a whole, or one by one.
template <bool dense, bool guarded, class Item>
__device__ __forceinline__ void read_access(Vector<Item>* to, const Item* from, long long step, Position position,
                                            Position end) {
    if (dense && (!guarded || is_whole(position, kItemsPerLoad, end))) {
        fetch(to, from);
    } else {
#pragma unroll
        for (int k = 0; k < kItemsPerLoad; ++k)
            if (!guarded || is_inside(position + place_of(k, kItemsPerLoad), end))
                fetch(&to->item[k], from + k * step);
            else
                leave_out(to->item[k]);
    }
}

// Read accesses that lie as those of the output, or whose items are `step` apart, by rising address. `from` lies
// `shift` items further on than the output.
template <bool dense, int shift = 0, class Item>
__device__ __forceinline__ void read_row(Vector<Item>* to, const RowPart& part, const Item* from, long long step) {
    const Position end = kComplete ? min(part.end, part.length - 1) : part.end;
#pragma unroll
    for (int n = 0; n < kThreadLoads; ++n) {
        const int j = place_of(n, kThreadLoads);
        const Item* const access = from + along(j * part.step) * step;
        Vector<Item>& slot = to[slot_of(j, part.lane)];
        if (part.reaches(j))
            read_access<dense, (kGuards || shift > 0)>(&slot, access, step, part.at(j) + shift, end);
        else
            leave_out(slot);
    }
}

// Fill all accesses with the one item of a line.
template <class Access, class Item>
__device__ __forceinline__ void spread(Access (&a)[kThreadLoads], Item item) {
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
#pragma unroll
        for (int k = 0; k < kItemsPerLoad; ++k) a[j].item[k] = item;
}

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
