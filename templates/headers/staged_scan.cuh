//@ scan_row
// Scan a row, of which read(i, rest) gives the run of items that begins with item i of a lane's piece, and `rest` items
// of it remain; write(i, rest, prefix, run) stores its results. Lanes that share the row first reduce a piece each and
// scan the totals; then each lane scans its piece.
template <bool alone, class Read, class Write>
__device__ __forceinline__ void scan_row(const Read& read, const Write& write, State prefix, Position length, int part,
                                         int piece) {
    const int rest = length - part * piece;  // items to the end of the row
    const int items = rest < piece ? rest : piece;
    constexpr bool kept = kKeepsItems && !alone;  // the items stay in registers in between
    [[maybe_unused]] constexpr int steps = kept ? kThreadRuns : kUnroll;
    const int end = kept ? kThreadRuns * kRunItems : items;
    Items s[kept ? kThreadRuns : 1];
    if constexpr (!alone) {
        State total = identity();
#pragma unroll steps
        for (int i = 0; i < end; i += kRunItems) {
            if (i >= items) continue;
            Items& scanned = s[kept ? i / kRunItems : 0];
            scanned = read(i, items - i);
            total = kThreadRuns == 1 ? scan_items(scanned) : combine(total, scan_items(scanned));
        }
        const State older = shuffle_up(scan_lanes(total, part), 1);
        if (part > 0) prefix = kInitial ? combine(prefix, older) : older;
    }
#pragma unroll steps
    for (int i = 0; i < end; i += kRunItems) {
        if (i >= items) continue;
        Items& scanned = s[kept ? i / kRunItems : 0];
        if constexpr (!kept) scanned = read(i, items - i);
        const State total = kept && !kSerial ? scanned.item[kRunItems - 1] : scan_items(scanned);
        write(i, items - i, prefix, scanned);
        prefix = combine(prefix, total);
    }
}
