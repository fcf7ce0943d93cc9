//@ empty_state
__device__ __forceinline__ State empty_state() { return identity(); }
