//@ each_column
// The states that a function gives for each column.
template <typename Of>
__device__ __forceinline__ States each_column(Of of) {
    States s;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) s.column[c] = of(c);
    return s;
}

//@ every_column
// Whether a condition holds for every column.
template <typename Of>
__device__ __forceinline__ bool every_column(Of of) {
    bool all = true;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) all = all && of(c);
    return all;
}

//@ identities
__device__ __forceinline__ States identities() {
    return each_column([](int) { return identity(); });
}

//@ empty_state
__device__ __forceinline__ States empty_state() { return identities(); }
