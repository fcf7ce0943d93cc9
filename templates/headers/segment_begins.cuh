//@ begins
// Whether item k is the first of its segment in scan order.
__device__ __forceinline__ bool begins(const Items& s, int k) { return line_state(s.item[k], 0).bounds & 2; }
