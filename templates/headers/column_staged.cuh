// Rows from a stage of the ring.
#pragma once

// The rows that a thread scans of a tile that arrived.
template <typename Item>
__device__ __forceinline__ Rows<Item> staged_rows(const Access<Item>* stage) {
    Rows<Item> rows;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) rows.row[k] = stage[scanned_place<Item>(k)];
    return rows;
}

// This thread's rows of a tile that arrived.
__device__ __forceinline__ TileRows staged(const Ring& ring, int stage, const Sources&) {
    TileRows rows;
    for_each_operand([&](auto, auto& to, auto& slots) { to = staged_rows(slots[stage]); }, rows, ring);
    return rows;
}
