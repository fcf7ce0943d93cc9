//@ line_state
// The state of line c of a thread.
__device__ __forceinline__ State& line_state(States& s, int c) { return s.column[c]; }
__device__ __forceinline__ const State& line_state(const States& s, int c) { return s.column[c]; }

//@ begins
// Whether item k is the first of its segment in scan order.
__device__ __forceinline__ bool begins(const Items& s, int k) { return line_state(s.item[k], 0).bounds & 2; }
