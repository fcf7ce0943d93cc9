// Rows from a stage of the ring, where they begin between the boundaries of vector loads.
#pragma once

// The rows that a thread scans of a tile that arrived; x: the operand, any tiles further.
template <typename Item>
__device__ __forceinline__ Rows<Item> staged_rows(const Access<Item>* stage, const Source<Item>& x) {
    const int skew = skew_of<16>(x.first);  // the same in all tiles
    Rows<Item> rows;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        const Access<Item>* const from = stage + scanned_place<Item>(k) + skew / kThreadColumns;
        rows.row[k] = realign<kThreadColumns>(from[0], from[1], skew % kThreadColumns);
    }
    return rows;
}

// This thread's rows of a tile that arrived.
__device__ __forceinline__ TileRows staged(const Ring& ring, int stage, const Sources& from) {
    TileRows rows;
    for_each_operand([&](auto, auto& to, auto& slots, auto& x) { to = staged_rows(slots[stage], x); }, rows, ring,
                     from);
    return rows;
}
