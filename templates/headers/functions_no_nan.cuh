//@ is_nan
__device__ __forceinline__ bool is_nan(Value) { return false; }
