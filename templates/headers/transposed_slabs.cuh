//@ kAlong, kAcross
static_assert(kLanes == kWarpThreads, "a warp for each part of a tile");

// Items that are contiguous in memory, and in a slab.
constexpr bool kAlong = true;    // those of a line
constexpr bool kAcross = false;  // those of neighbouring lines at one position

//@ Slab
template <class Item>
struct alignas(16) Slab {  // a warp's part of a tile
    Item item[kColumns * kRun];
};

//@ place_of
// The place of a thread among the block's lines, the first of which is `line`.
__device__ __forceinline__ Place place_of(long long line, int lines, long long step, Position length) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Position first = warp * kRun;
    // results along lines: the lowest in memory of the warp's; across lines: the thread's
    const long long item = kToRows ? line * length + memory_index(first, kRun, length)
                                   : (line / kInner * length + memory_index(first, 1, length)) * kInner + line % kInner
                                         + lane * kPitch;
    const int there = columns_of(lines - lane * kPitch);
    return {lane, warp, lane, there, line + lane * kPitch * step, kSpacing * step, item, first, first,
            there > 0 ? length - first : 0};
}

//@ source_of
// `line`: the first of the block's lines at index 0; `beside`: items from a line to its neighbour.
template <bool order, typename Item>
__device__ __forceinline__ Source<Item> source_of(const Item* line, [[maybe_unused]] long long beside,
                                                  [[maybe_unused]] long long step, Position first, Position length) {
    if constexpr (order == kAlong) return {line + memory_index(first, kRun, length), kReverse ? -1 : 1, {}, {}, beside};
    const long long forward = kReverse ? -step : step;
    return {line + memory_index(first, 1, length) * step, forward, {}, {}, forward};
}

//@ kPiece
// Items of one line that a lane reads or writes at once in shared memory.
template <typename Item>
constexpr int kPiece = kRun * sizeof(Item) < 16 ? kRun : 16 / sizeof(Item);

//@ place_of
// Place of an item of a run in a slab. Pieces of lines are swizzled so that lanes access different banks.
template <bool order, typename Item>
__device__ __forceinline__ int place_of(int run, int item) {
    if (order == kAcross) return run * kColumns + item;
    constexpr int pieces = kRun / kPiece<Item>;  // pieces per line
    constexpr int swizzled = kPitch * pieces > 8 ? kPitch : 8 / pieces;  // lines with the same swizzle
    static_assert(order == kAcross || (kRun % kPiece<Item> == 0 && pieces <= 8), "whole pieces, at most 8");
    const int piece = (run * pieces + item / kPiece<Item>) ^ (run / swizzled % 8);
    return piece * kPiece<Item> + item % kPiece<Item>;
}

//@ move_slab
// Move a warp's part of a tile to a slab, by asynchronous copies, or from it: groups of lanes move runs of contiguous
// items, which are `pitch` items apart in global memory. Of the warp's lines `lines` exist, of its positions `live`.
template <bool store, bool order, int access, typename Item, typename Pointer>
__device__ __forceinline__ void move_slab(Item* slab, Pointer first, long long pitch, int lines, Position live) {
    constexpr int runs = order == kAlong ? kColumns : kRun, items = order == kAlong ? kRun : kColumns;
    constexpr int lanes = items / access < 32 ? items / access : 32;  // lanes per group
    static_assert(runs % (32 / lanes) == 0 && items % (lanes * access) == 0, "groups of lanes move whole runs");
    const int run = threadIdx.x % 32 / lanes, item = threadIdx.x % 32 % lanes * access;
    const auto run_exists = [&](int k) { return order == kAlong ? k < lines : !kUneven || k < live; };
    const auto item_exists = [&](int k) {
        return order == kAcross ? k < lines : !kUneven || (kReverse ? k >= kRun - live : k < live);
    };
    if (!kClears && !item_exists(item)) return;
    first += run * pitch + item;
#pragma unroll
    for (int k = 0; k < runs; k += 32 / lanes, first += 32 / lanes * pitch)
#pragma unroll
        for (int part = 0; part < items; part += lanes * access) {
            auto& slot = *reinterpret_cast<Access<Item, access>*>(slab + place_of<order, Item>(run + k, item + part));
            const bool exists = run_exists(run + k) && ((!kClears && part == 0) || item_exists(item + part));
            if constexpr (!store)
                exists ? copy_async<true>(&slot, first + part) : leave_out(slot);
            else if (exists)
                *reinterpret_cast<Access<Item, access>*>(first + part) = slot;
        }
}

//@ move_lines
// Move a lane's lines from or to a slab in which they are contiguous.
template <bool store, typename Item>
__device__ __forceinline__ void move_lines(Item* slab, Rows<Item>& rows) {
#pragma unroll
    for (int c = 0; c < kVector; ++c)
#pragma unroll
        for (int begin = 0; begin < kRun; begin += kPiece<Item>) {
            const int place = place_of<kAlong, Item>(threadIdx.x % 32 * kPitch + c * kSpacing, begin);
            auto& slot = *reinterpret_cast<Access<Item, kPiece<Item>>*>(slab + place);
            Access<Item, kPiece<Item>> piece;
            if (!store) piece = slot;
#pragma unroll
            for (int k = 0; k < kPiece<Item>; ++k) {
                Item& item = rows.row[kReverse ? kRun - 1 - begin - k : begin + k].column[c];
                if (store)
                    piece.column[k] = item;
                else
                    item = piece.column[k];
            }
            if (store) slot = piece;
        }
}

//@ load
// This lane's items of a tile that arrived.
template <bool order, typename Item>
__device__ __forceinline__ Rows<Item> load(Item* slab) {
    Rows<Item> rows;
    if constexpr (order == kAlong) {
        move_lines<false>(slab, rows);
        return rows;
    }
    slab += threadIdx.x % 32 * kPitch;
#pragma unroll
    for (int k = 0; k < kRun; ++k, slab += kColumns) {
        if constexpr (!kStridedColumns) rows.row[k] = *reinterpret_cast<const Access<Item>*>(slab);
#pragma unroll
        for (int c = 0; c < kVector && kStridedColumns; ++c) rows.row[k].column[c] = slab[c * kSpacing];
    }
    return rows;
}

//@ store_slab
// Store a warp's results of a tile, contiguous along their lines, by way of a slab.
template <int access, class Item>
__device__ __forceinline__ void store_slab(Slab<Item>& slab, Item* to, Rows<Item>& rows, long long pitch, int lines,
                                           Position live) {
    __syncwarp();  // all lanes have read what the slab held
    move_lines<true>(slab.item, rows);
    __syncwarp();
    move_slab<true, kAlong, access>(slab.item, to, pitch, lines, live);
}

