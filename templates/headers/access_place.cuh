// Places of vectors that the lanes of a warp exchange.
#pragma once

// Place of a vector in shared memory: free of bank conflicts in order, and where each lane has `run` consecutive ones.
template <int run>
__device__ __forceinline__ int access_place(int number) {
    return number ^ (number >> 3 & (run - 1));
}
