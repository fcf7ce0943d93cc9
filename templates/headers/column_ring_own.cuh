// Places in the ring by row and thread: a thread reads what it copied, so no barrier is needed.
#pragma once

// Accesses of a stage of the ring, by row and thread: a thread reads what it copied, so no barrier is needed.
template <typename Item>
constexpr int kStage = kRunItems * kBlockThreads;

template <typename Item>
__device__ __forceinline__ int copied_place(int k) {
    return k * kBlockThreads + (int)threadIdx.x;
}

template <typename Item>
__device__ __forceinline__ int scanned_place(int k) {
    return copied_place<Item>(k);
}
