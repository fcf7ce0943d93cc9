// Sums over the lanes of a line, and over the lines of a warp, in a fixed order.
#pragma once


// The sum over the lanes of a line, for each of them.
template <class Number>
__device__ __forceinline__ Number sum_line(Number number) {
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) number += __shfl_xor_sync(kFullMask, number, half);
    return number;
}

// Add up `count` numbers over threads of a warp whose numbers differ in bits from `low` to below `high`. Each step
// sends half of them, as long as their number is even; afterwards a thread has the sums from `first_kept` on,
// `kept_of` of them, at the beginning of the array.
template <int low, int high, int count, class Number>
__device__ __forceinline__ void sum_threads(Number (&numbers)[count]) {
    int kept = count;
#pragma unroll
    for (int half = high / 2; half >= low; half /= 2) {
        if (kept % 2 == 0) {
            kept /= 2;
            const bool is_high = threadIdx.x & half;
#pragma unroll
            for (int i = 0; i < (count + 1) / 2; ++i) {
                if (i < kept) {
                    const Number sent = is_high ? numbers[i] : numbers[i + kept];
                    const Number own = is_high ? numbers[i + kept] : numbers[i];
                    numbers[i] = own + __shfl_xor_sync(kFullMask, sent, half);
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < count; ++i)
                if (i < kept) numbers[i] += __shfl_xor_sync(kFullMask, numbers[i], half);
        }
    }
}

template <int low, int high>
__device__ constexpr int kept_of(int count) {
    for (int half = high / 2; half >= low; half /= 2)
        if (count % 2 == 0) count /= 2;
    return count;
}

template <int low, int high>
__device__ __forceinline__ int first_kept(int count) {
    int first = 0;
#pragma unroll
    for (int half = high / 2; half >= low; half /= 2)
        if (count % 2 == 0) {
            count /= 2;
            first += (threadIdx.x & half) ? count : 0;
        }
    return first;
}

// Whether the calling thread is the one that writes its sums: several have them where threads outnumber them.
template <int low, int high>
__device__ __forceinline__ bool writes_kept(int count) {
    bool writes = true;
#pragma unroll
    for (int half = high / 2; half >= low; half /= 2) {
        if (count % 2 == 0)
            count /= 2;
        else
            writes = writes && !(threadIdx.x & half);
    }
    return writes;
}

// ---- over the lanes of a line, and over the lines of a warp

template <int count, class Number>
__device__ __forceinline__ void sum_lanes(Number (&numbers)[count]) {
    sum_threads<1, kLanes>(numbers);
}

template <int count, class Number>
__device__ __forceinline__ void sum_lines(Number (&numbers)[count]) {
    sum_threads<kLanes, kWarpThreads>(numbers);
}
