// Carries of segments at a thread's items.
#pragma once

// The carries of the segments of a thread's lines, one for each segment of each line.
struct Carries {
    const Segments& offsets;  // where each segment begins, and where the last one ends
    const Carry* in;
    Carry* out;
    long long line, step;  // the number of the first line; from there to the next
    int there;             // lines that exist
    long long length;      // items in a line

    // The segment that holds the item at `place`; the empty ones beside it hold none. Offsets that were overwritten
    // may put the item in front of the first segment or behind the last.
    __device__ int segment_of(long long place) const {
        const int segment = count_begins_alone(offsets, place + 1) - 1, last = offsets.count - 2;
        return segment < 0 ? 0 : segment < last ? segment : last;
    }

    __device__ long long index_of(int c, int segment) const {
        const long long own = line + c * step, inner = kInner;
        return (own / inner * (offsets.count - 1) + segment) * inner + own % inner;
    }

    // Store the carry-out of segment `own`, which has items; the empty ones beside it pass their carry-in on.
    __device__ void end(int c, int own, State last) const {
        const auto pass_on = [&](int s) {
            if constexpr (kResumes)
                out[index_of(c, s)] = in[index_of(c, s)];
            else
                out[index_of(c, s)] = end_line(identity());
        };
        const int count = offsets.count - 1;
        const Offset* const begin = offsets.begin;
        out[index_of(c, own)] = end_line(last);
        for (int s = 0; begin[own] == 0 && s < own; ++s) pass_on(s);
        for (int s = own + 1; s < count && begin[s] == begin[s + 1]; ++s) pass_on(s);
    }
};

// The state of line c of a thread, which has one, unless it has columns.
template <class Of>
__device__ __forceinline__ Of& line_state(Of& s, int) {
    return s;
}

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
