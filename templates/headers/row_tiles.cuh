//@ tiles_of
__device__ __forceinline__ int tiles_of(Position length) {
    return (int)((length + kMaxLead + kTileItems - 1) / kTileItems);
}
