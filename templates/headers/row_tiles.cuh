//@ tiles_of
__device__ __forceinline__ int tiles_of(Position length) {
    return (int)((length + kLead + kTile - 1) / kTile);
}

