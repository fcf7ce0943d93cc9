// The state of a thread's line.
#pragma once

// The state of line c of a thread, which has one.
__device__ __forceinline__ State& line_state(State& s, int) { return s; }
__device__ __forceinline__ const State& line_state(const State& s, int) { return s; }
