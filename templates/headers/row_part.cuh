// A thread's slice of a row.
#pragma once

struct RowPart {                            // a thread's slice of a row
    Position first;                         // scan position of its first item
    Position length;                        // of the row
    Position end;                           // of the items that it accesses
    int lane;                               // in the row
    int lanes = kLanes, last = kLanes - 1;  // lanes of the row, and the last of them in the warp
    int step = kLanes * kItemsPerLoad;      // items from an access to the next
    int accesses = kThreadLoads;            // that have items
    bool live = true;                       // the row is not past the last one

    __device__ __forceinline__ Position at(int j) const { return first + j * step; }  // of access j

    __device__ __forceinline__ bool reaches([[maybe_unused]] int j) const {
        return live && (!kChecksEnd || at(j) < end);
    }

    // Scan position of the first item of run j.
    __device__ __forceinline__ Position begin(int j) const {
        return kThreadRuns == 1 ? first + lane * (kRunItems - kItemsPerLoad) : at(j);
    }

    // Items from there to the end of the row.
    __device__ __forceinline__ Position rest(int j) const { return length - begin(j); }
};

// The first access of a contiguous tensor whose rows have this length.
template <class Item>
__device__ __forceinline__ Item* dense(Item* items, long long line, const RowPart& part, Position length) {
    return items + line * length + memory_index(part.first, kItemsPerLoad, length);
}

// ---- misaligned rows: vector accesses are aligned, those at both ends of a row are predicated
__device__ __forceinline__ bool is_inside(Position position, Position end) {
    return (unsigned long long)position < (unsigned long long)end;
}

__device__ __forceinline__ bool is_whole(Position position, int items, Position end) {
    return position >= 0 && position <= end - items;
}

// Items from the boundary before a row to its first item in scan order.
__device__ __forceinline__ int lead_of(long long line, [[maybe_unused]] const Output* output, Position length) {
    long long row = (line + kReverse) * length;
    if constexpr (!kAligned) row += (long long)((size_t)output / sizeof(Output));
    return (int)((kReverse ? -row : row) & (kBoundaryItems - 1));
}
