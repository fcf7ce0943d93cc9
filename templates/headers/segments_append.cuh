// A single item of a segmented scan.
#pragma once

// Combine with one item. An item that begins a segment has no predecessor: its gate is ignored, because NaN times the
// identity is NaN.
__device__ __forceinline__ State append(State older, State newer) {
    const auto begin_segment = [&] {
        return kResumes ? newer.plain : unsegmented::append(unsegmented::identity(), newer.plain);
    };
    if constexpr (kFlagsEndSegments) {
        const bool cut = (newer.bounds & 1) || (older.bounds & 2);
        return {cut ? begin_segment() : unsegmented::append(older.plain, newer.plain),
                (newer.bounds & 2) | (older.bounds & 1) | cut};
    } else {
        return {newer.bounds ? begin_segment() : unsegmented::append(older.plain, newer.plain),
                newer.bounds | (older.bounds & 1)};
    }
}
