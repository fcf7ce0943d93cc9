// Places in the ring by warp and in memory order: an access of a warp is contiguous however narrow a column tile is.
#pragma once

inline constexpr int kGap = kRunItems % 2 == 0 ? kLanes : 0;  // accesses of padding after a thread's rows: no bank conflicts
inline constexpr int kSlotAccesses = kRunItems * kLanes + kGap;  // accesses from one slot's rows to the next slot's
inline constexpr int kWarpAccesses = kWarpThreads / kLanes * kSlotAccesses;

// Accesses of a warp's part of a stage, with slack for misaligned rows.
template <typename Item>
constexpr int kPart = kWarpAccesses + (kRealigns ? 16 / sizeof(Access<Item>) : 0);

// Accesses of a stage of the ring.
template <typename Item>
constexpr int kStage = kBlockWarps * kPart<Item>;

// Index in a stage of the access that a thread copies or stores as its k-th: a warp reads what its lanes copied.
template <typename Item>
__device__ __forceinline__ int copied_place(int k) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads,
              scanned = k * kStride + lane / kLanes;
    const int row = kReverse ? kWarpRows - 1 - scanned : scanned;
    return warp * kPart<Item> + row * kLanes + lane % kLanes + row / kRunItems * kGap;
}

// Index in a stage of the k-th row that a thread scans.
template <typename Item>
__device__ __forceinline__ int scanned_place(int k) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const int slot = kReverse ? (kWarpThreads - 1 - lane) / kLanes : lane / kLanes,
              row = kReverse ? kRunItems - 1 - k : k;
    return warp * kPart<Item> + slot * kSlotAccesses + lane % kLanes + row * kLanes;
}

// Exchange the rows that a thread scanned for those that it stores.
template <typename Item>
__device__ __forceinline__ Rows<Item> exchange(Access<Item>* stage, Rows<Item> rows) {
    if (kRealigns) __syncwarp();  // all lanes have read the items overwritten below
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) stage[scanned_place<Item>(k)] = rows.row[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) rows.row[k] = stage[copied_place<Item>(k)];
    return rows;
}
