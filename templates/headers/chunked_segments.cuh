// Segments that the scan goes through in chunks of so many items.
#pragma once

struct Segments {
    const Offset* begin;  // begins of the segments after the first, or of all of them and their end, ascending
    int count;
    int chunk;      // items of a segment after which the scan begins again
    long long end;  // items in a line: where the last segment ends
};

// Offset k. Offsets may have been overwritten since they were checked: a wrong one lies in the line all the same.
__device__ __forceinline__ long long begin_of(const Segments& segments, int k) {
    const long long begin = segments.begin[k];
    return begin < 0 ? 0 : begin < segments.end ? begin : segments.end;
}
