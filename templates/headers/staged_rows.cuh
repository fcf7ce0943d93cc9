// A warp's rows in shared memory: copies, and scans of a row by one lane or several.
#pragma once
#include "headers/copy_intrinsics.cuh"

struct Rows {  // one row or several in global or shared memory, by operand and output
    Operands<ConstPointerTo> from;
    Outputs<PointerTo> to;
};

__device__ __forceinline__ Rows advance(Rows rows, long long items, long long results) {
    for_each_operand([&](auto, auto& from) { from += items; }, rows.from);
    for_each_output([&](auto& to) { to += results; }, rows.to);
    return rows;
}

// Items between the preceding 16-byte boundary and the rows.
template <class Item>
__device__ __forceinline__ int phase(const Item* rows) {
    return kSlackBytes == 0 ? 0 : (int)((unsigned long long)rows % 16 / sizeof(Item));
}

// A warp copies items between global and shared memory, where they lie alike after a 16-byte boundary: by 16-byte
// accesses, and single items at both ends.
template <bool async, class Item>
__device__ __forceinline__ void copy_items(Item* to, const Item* from, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = kWarpThreads * width;
    const auto copy = [&](int i) {  // a 16-byte access
        auto* const wide = reinterpret_cast<Vector<unsigned, 4>*>(to + i);
        if constexpr (async)
            copy_async(wide, from + i);
        else
            *wide = *reinterpret_cast<const Vector<unsigned, 4>*>(from + i);
    };
    const int begin = phase(async ? from : to), end = begin + count;  // after the boundary
    to -= begin, from -= begin;
    int i = lane * width;
    if (kSlackBytes == 0 && end == kRoomItems) {  // all rows of the warp exist, and end on a boundary
#pragma unroll 8
        for (int step = 0; step < kRoomItems / stride; ++step, i += stride) copy(i);
        if (i < kRoomItems) copy(i);
        return;
    }
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (i += first; i < whole; i += stride) copy(i);
    if (lane >= begin && lane < first && lane < end) to[lane] = from[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) to[last] = from[last];
}

// Copy a warp's rows to shared memory, and return where they begin there. In reverse an item of a complete scan lies
// one place before its result.
__device__ __forceinline__ Rows read_rows(Staged& staged, const Rows& rows, int count, int lane) {
    const Operands<PointerTo> operands = staged.operands();
    const Outputs<PointerTo> outputs = staged.outputs();
    for_each_operand(
        [&](auto layout, auto* to, auto* from) {
            if constexpr (!layout.kIsRepeated) copy_items<true>(to + phase(from), from, count, lane);
        },
        operands, rows.from);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    Rows copied = rows;
    for_each_operand([&](auto, auto& from, auto* to) { from = to + phase(from) - (kComplete && kReverse); },
                     copied.from, operands);
    for_each_output([&](auto& to, auto* from) { to = from + phase(to); }, copied.to, outputs);
    return copied;
}

// Copy the results of a warp's rows to global memory.
__device__ __forceinline__ void write_rows(const Rows& rows, Staged& staged, int count, int lane) {
    const Outputs<PointerTo> outputs = staged.outputs();
    __syncwarp();
    for_each_output([&](auto* to, auto* from) { copy_items<false>(to, from + phase(to), count, lane); }, rows.to,
                    outputs);
}

template <class Item>
__device__ __forceinline__ Vector<Item> read_vector(const Item* from) {
    return *reinterpret_cast<const Vector<Item>*>(from);
}

template <class Item>
__device__ __forceinline__ Vector<Item> otherwise([[maybe_unused]] const Vector<Item> (&loads)[kThreadLoads]) {
    if constexpr (kComplete)
        return {};
    else
        return loads[0];
}

template <class Item, int count>
__device__ __forceinline__ void store_vector(Item* to, const Vector<Item, count>& items) {
    *reinterpret_cast<Vector<Item, count>*>(to) = items;
}

// The accesses of a run that begins with item i of a lane's piece; `rest`: items that remain of the piece.
__device__ __forceinline__ Accesses read_run(const Rows& at, int i, [[maybe_unused]] int rest, int start,
                                             Position length) {
    Accesses a;
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        // Accesses past the piece repeat the first one: no stored result depends on them, and their items are as great
        // as those of the row.
        const bool inside = kComplete ? start + i + j * kItemsPerLoad < length - 1 : j == 0 || j * kItemsPerLoad < rest;
        for_each_operand(
            [&](auto layout, auto& loads, auto* from) {
                if constexpr (!layout.kIsRepeated)
                    loads[j] = inside ? read_vector(from + along(i + j * kItemsPerLoad)) : otherwise(loads);
            },
            a, at.from);
    }
    return a;
}

__device__ __forceinline__ void write_run(const Rows& at, int i, int rest, const Results& r) {
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        if (j > 0 && j * kItemsPerLoad >= rest) continue;
        for_each_output([&](auto* to, auto& y) { store_vector(to + along(i + j * kItemsPerLoad), y[j]); }, at.to, r);
    }
}

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
