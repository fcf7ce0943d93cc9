//@ any_begins
// Whether some item is: those of most threads are not, and have no carries.
__device__ __forceinline__ bool any_begins(const Items& s) {
    bool any = false;
#pragma unroll
    for (int k = 0; k < kRun; ++k) any = any || begins(s, k);
    return any;
}

//@ resumed
// Let the first item of each segment continue from its carry-in. i: index in the line of the first item
__device__ __forceinline__ Items resumed(Items s, const Carries& carries, long long i) {
    if constexpr (kExclusive) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) s.start[k] = empty_state();
    }
    if (!any_begins(s)) return s;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        const long long place = kReverse ? i - k : i + k;
        if (!begins(s, k) || place < 0 || place >= carries.length) continue;
        const int segment = carries.segment_of(place);
        ThreadState begin = empty_state();
#pragma unroll
        for (int c = 0; c < kThreadLines; ++c) {
            if (c >= carries.there) break;
            State& item = line_state(s.item[k], c);
            line_state(begin, c) = begin_line(carries.in + carries.index_of(c, segment));
            item.plain = unsegmented::append(line_state(begin, c).plain, item.plain);
        }
        if constexpr (kExclusive) s.start[k] = begin;
    }
    return s;
}

//@ end_items
// Store the carries-out of the segments that end before or with one of these items, of which `rest` remain in the line;
// the first `count` are the thread's own.
__device__ __forceinline__ void end_items(const Carries& carries, long long rest, const ThreadState& prefix,
                                          const Items& s, int count = kRun) {
    if (rest > kRun && !any_begins(s)) return;  // nor does the line end here
    const long long length = carries.length;
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRun && k < count; ++k) {
        const long long position = length - rest + k;
        const auto end = [&](long long at) {
            const int own = carries.segment_of(kReverse ? length - 1 - at : at);
#pragma unroll
            for (int c = 0; c < kThreadLines; ++c)
                if (c < carries.there) carries.end(c, own, line_state(last, c));
        };
        if (position > 0 && position < length && begins(s, k)) end(position - 1);
        last = append(last, s.item[k]);
        if (position == length - 1) end(position);
    }
}

