// Which chunk of which segment a block scans.
#pragma once

// Find the items of a chunk, from `before` to `stop`: none if no chunk has the number. Chunk c of segment s has the
// number begin / chunk + s + c, which rises from each chunk to the next and is less than end / chunk + segments.
__device__ __forceinline__ void find_chunk(const Segments& segments, int number, int lane, long long& before,
                                           long long& stop) {
    int low = 0, count = segments.count - 1;
    while (count > 0) {  // count the segments with a first number up to `number`, as the offsets before a place
        const int part = (count + kWarpThreads - 1) / kWarpThreads, last = (lane + 1) * part - 1,
                  rest = number - low - last;
        const bool is_before = last < count && begin_of(segments, low + last) < (rest + 1LL) * segments.chunk;
        const int whole = __popc(__ballot_sync(kFullMask, is_before));
        low += whole * part;
        count = min(count - whole * part, part - 1);
    }
    const int segment = low > 0 ? low - 1 : 0;
    const long long begin = begin_of(segments, segment), end = begin_of(segments, segment + 1);
    const int chunk = number - segment - (int)((unsigned)begin / segments.chunk);
    before = begin + (long long)chunk * segments.chunk;
    stop = chunk < 0 ? before : min(before + segments.chunk, end);
}
