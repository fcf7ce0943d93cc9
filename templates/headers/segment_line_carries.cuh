// Carries of the segments of a line.
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
