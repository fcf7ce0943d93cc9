// A single item of a segmented scan.
#pragma once

// Combine with one item. An item that begins a segment has no predecessor: its gate is ignored, because NaN times the
// identity is NaN.
__device__ __forceinline__ State append(State older, State newer) {
    const auto join = [&](bool cut) {
        if constexpr (kResumes)
            return cut ? newer.plain : unsegmented::append(older.plain, newer.plain);
        else
            return unsegmented::append(cut ? unsegmented::identity() : older.plain, newer.plain);
    };
    if constexpr (kFlagsEndSegments) {
        const bool cut = (newer.bounds & 1) || (older.bounds & 2);
        return {join(cut), (newer.bounds & 2) | (older.bounds & 1) | cut};
    } else {
        return {join(newer.bounds), newer.bounds | (older.bounds & 1)};
    }
}
