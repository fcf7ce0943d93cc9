//@ within
// Combine an item with the prefix before it in its own segment.
__device__ __forceinline__ State within(State before, State own) {
    if constexpr (!kResumes)
        if ((kFlagsEndSegments ? before : own).bounds & 2) before = identity();
    return {unsegmented::within(before.plain, own.plain), before.bounds};
}

//@ begin_line
__device__ __forceinline__ State begin_line(const Carry* carry_in) { return {unsegmented::begin_line(carry_in), 0}; }

//@ end_line
// Carry-out: the result of the whole line, unless a segment ends there.
__device__ __forceinline__ Carry end_line(State state) {
    return unsegmented::end_line(kFlagsEndSegments && state.bounds & 2 ? unsegmented::identity() : state.plain);
}
