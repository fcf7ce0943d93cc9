//@ line_state
// The state of line c of a thread, which has one.
__device__ __forceinline__ State& line_state(State& s, int) { return s; }
__device__ __forceinline__ const State& line_state(const State& s, int) { return s; }

//@ begins
// Whether item k is the first of its segment in scan order.
__device__ __forceinline__ bool begins(const Items& s, int k) { return line_state(s.item[k], 0).bounds & 2; }
