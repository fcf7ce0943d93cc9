// The operator of a segmented scan.
#pragma once

__device__ __forceinline__ State identity() { return {unsegmented::identity(), 0}; }

// A segment is the same items in both directions; scanned in reverse, it ends with the item that carries its head flag.
// With carries of segments the first item in scan order carries the flag in both directions.
__device__ __forceinline__ State combine(State older, State newer) {
    if constexpr (kFlagsEndSegments) {
        const bool cut = (newer.bounds & 1) || (older.bounds & 2);
        return {cut ? newer.plain : unsegmented::combine(older.plain, newer.plain),
                (newer.bounds & 2) | (older.bounds & 1) | cut};
    } else {
        return {newer.bounds ? newer.plain : unsegmented::combine(older.plain, newer.plain),
                newer.bounds | (older.bounds & 1)};
    }
}
