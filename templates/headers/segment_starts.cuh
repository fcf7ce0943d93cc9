//@ starts_of
// Bit k: whether a segment begins at item k of run j.
__device__ __forceinline__ unsigned starts_of(const unsigned* marks, int j, int lane) {
    static_assert(kRun <= 32, "bits of two words");
    const int run = j * 32 + lane, at = (kReverse ? kRuns * 32 - 1 - run : run) * kRun;
    if constexpr (32 % kRun == 0) return marks[at / 32] >> at % 32;
    return __funnelshift_r(marks[at / 32], marks[at / 32 + 1], at % 32);
}

//@ begins_before
// The number of segments that begin before `place`.
__device__ __forceinline__ int begins_before(const Segments& segments, long long place) {
    int low = 0, high = segments.count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (segments.begin[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

