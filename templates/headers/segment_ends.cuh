// Carries of a line of segments.
#pragma once

__device__ __forceinline__ State begin_line(const Carry* carry_in) { return {unsegmented::begin_line(carry_in), 0}; }

// Carry-out: the result of the whole line, unless a segment ends there.
__device__ __forceinline__ Carry end_line(State state) {
    return unsegmented::end_line(kFlagsEndSegments && state.bounds & 2 ? unsegmented::identity() : state.plain);
}
