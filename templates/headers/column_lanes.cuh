// Scans across the threads of a warp that are along the same columns.
#pragma once

__device__ __forceinline__ State shuffle_up(const State& s, int distance) {
    return exchange_parts([&](auto part) { return __shfl_up_sync(kFullMask, part, distance); }, s);
}

__device__ __forceinline__ State shuffle(const State& s, int source) {
    return exchange_parts([&](auto part) { return __shfl_sync(kFullMask, part, source); }, s);
}

__device__ __forceinline__ States shuffle_up(const States& s, int distance) {
    return each_column([&](int c) { return shuffle_up(s.column[c], distance); });
}

inline constexpr int kSlots = kWarpThreads / kLanes;  // threads of a warp along the same columns

// The states of the warp's last slot.
__device__ __forceinline__ States of_last_slot(const States& s) {
    const int source = kWarpThreads - kLanes + threadIdx.x % kLanes;
    return kSlots == 1 ? s : each_column([&](int c) { return shuffle(s.column[c], source); });
}

// Inclusive scan across the lanes of a warp that are a multiple of `first` apart.
template <int first, class Of>
__device__ __forceinline__ Of scan_lanes(Of s, int lane) {
#pragma unroll
    for (int distance = first; distance < kWarpThreads; distance *= 2) {
        const Of older = shuffle_up(s, distance);
        if (lane >= distance) s = combine(older, s);
    }
    return s;
}

// The exclusive prefix of a slot in its warp, from the inclusive ones.
__device__ __forceinline__ States slot_prefix(const States& inclusive, int lane) {
    const States older = kSlots > 1 ? shuffle_up(inclusive, kLanes) : inclusive;
    return kSlots > 1 && lane >= kLanes ? older : identities();
}
