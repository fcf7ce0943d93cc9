// Sums of results over columns: of a thread's rows, then of the threads of a block that are along the same columns.
#pragma once

struct Sums {  // of a thread's columns
    Access<Sum> of[kLineSums];
};

typedef Sums WarpSums[kLanes];  // of a warp's columns

struct SummedResults : Results {
    Access<Sum> to_add[kLineSums];  // to the sums of the columns
};

// Call use(sum, column) for each.
template <class Use>
__device__ __forceinline__ void each_sum(Use use) {
#pragma unroll
    for (int n = 0; n < kLineSums; ++n)
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) use(n, c);
}

// Add what row k of a thread gives, if it exists; `rest`: rows from the thread's first to the end of its columns.
__device__ __forceinline__ void add_row(Sums& sums, int k, const SummedResults& row, [[maybe_unused]] Position rest) {
    if (!kUneven || rest > k) each_sum([&](int n, int c) { sums.of[n].column[c] += row.to_add[n].column[c]; });
}

// Store the sums of a block's columns, the first of each at `to` and those of the next result `step` items further on.
// The order of the additions is fixed: across the slots of a warp, then from warp to warp.
__device__ __forceinline__ void store_sums(Sum* to, long long step, Sums sums, WarpSums (&of_warps)[kBlockWarps],
                                           const Place& at) {
#pragma unroll
    for (int distance = kWarpThreads / 2; distance >= kLanes; distance /= 2)
        each_sum([&](int n, int c) {
            sums.of[n].column[c] += __shfl_down_sync(kFullMask, sums.of[n].column[c], distance);
        });
    if constexpr (kBlockWarps > 1) {
        if (at.lane < kLanes) of_warps[at.warp][at.lane] = sums;
        __syncthreads();
    }
    if (threadIdx.x >= kLanes) return;
#pragma unroll 1
    for (int w = 1; w < kBlockWarps; ++w)
        each_sum([&](int n, int c) { sums.of[n].column[c] += of_warps[w][at.lane].of[n].column[c]; });
    each_sum([&](int n, int c) {
        if (at.there > c) to[n * step + c * at.step] = sums.of[n].column[c];
    });
}
