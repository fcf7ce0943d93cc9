//@ starts_of
// Bit k: whether a segment begins at item k of run j.
__device__ __forceinline__ unsigned starts_of(const unsigned* marks, int j, int lane) {
    static_assert(kRunItems <= kWordBits, "bits of two words");
    const int run = j * kWarpThreads + lane, at = (kReverse ? kThreadRuns * kWarpThreads - 1 - run : run) * kRunItems;
    if constexpr (kWordBits % kRunItems == 0) return marks[at / kWordBits] >> at % kWordBits;
    return __funnelshift_r(marks[at / kWordBits], marks[at / kWordBits + 1], at % kWordBits);
}

//@ count_begins_alone
// The number of segments that begin before `place`.
__device__ __forceinline__ int count_begins_alone(const Segments& segments, long long place) {
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
