// The states of a thread's lines.
#pragma once

// The state of line c of a thread.
__device__ __forceinline__ State& line_state(States& s, int c) { return s.column[c]; }
__device__ __forceinline__ const State& line_state(const States& s, int c) { return s.column[c]; }
