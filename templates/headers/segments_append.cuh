//@ append
// Combine with one item. An item that begins a segment has no predecessor: its gate is ignored, because NaN times the
// identity is NaN.
__device__ __forceinline__ State append(State older, State newer) {
    const auto load_tickets = [&] {
        return kResumes ? newer.plain : unsegmented::append(unsegmented::identity(), newer.plain);
    };
    if constexpr (kFlagsEndSegments) {
        const bool cut = (newer.bounds & 1) || (older.bounds & 2);
        return {cut ? load_tickets() : unsegmented::append(older.plain, newer.plain),
                (newer.bounds & 2) | (older.bounds & 1) | cut};
    } else {
        return {newer.bounds ? load_tickets() : unsegmented::append(older.plain, newer.plain),
                newer.bounds | (older.bounds & 1)};
    }
}
