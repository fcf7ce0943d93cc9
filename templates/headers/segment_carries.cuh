// Carries of segments at a thread's items.
#pragma once

// Whether item k is the first of its segment in scan order.
template <class Items>
__device__ __forceinline__ bool begins(const Items& s, int k) {
    return line_state(s.item[k], 0).bounds & 2;
}

// Whether some item is: those of most threads are not, and have no carries.
__device__ __forceinline__ bool has_head(const Items& s) {
    bool any = false;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) any = any || begins(s, k);
    return any;
}

// Let the first item of each segment continue from its carry-in. i: index in the line of the first item
template <class Items>
__device__ __forceinline__ Items resume_segments(Items s, const Carries& carries, long long i) {
    if constexpr (kExclusive) {
#pragma unroll
        for (int k = 0; k < kRunItems; ++k) s.start[k] = empty_state();
    }
    if (!has_head(s)) return s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
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

// Store the carries-out of the segments that end before or with one of these items, of which `rest` remain in the line;
// the first `count` are the thread's own.
__device__ __forceinline__ void end_items(const Carries& carries, long long rest, const ThreadState& prefix,
                                          const Items& s, int count = kRunItems) {
    if (rest > kRunItems && !has_head(s)) return;  // nor does the line end here
    const long long length = carries.length;
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems && k < count; ++k) {
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
