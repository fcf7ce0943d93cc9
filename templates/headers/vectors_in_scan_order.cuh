// Vectors in scan order. Each namespace that scans includes it.

// Where a vector of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }
