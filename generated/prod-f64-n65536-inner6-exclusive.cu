// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f64-n65536-inner6-exclusive
//          65536 float64 items of stride 6, exclusive, float64 out
// plan     columns_lookback: threads 128, items 16, tiles 64, columns 4, vector 2, strided_columns False, stages 0, blocks 4, abreast 256, group 32, stretch 4
//          columns of 65536: their tiles are split over all multiprocessors
// numbers  rule: columns_lookback
// target   sm_90
// content  sha256 1d5a048604a29c9f of everything below this banner
// again    scanops generate prod-f64-n65536-inner6-exclusive --target sm_90 --lines 6

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef double Input;  // float64
typedef double Output;  // float64

typedef double Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: columns_lookback
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr int kWarpThreads = 32;
constexpr unsigned kFullMask = 0xffffffffu;  // all threads of a warp
constexpr int kLength = 65536;  // items per line
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kBlockThreads = 128;  // threads per block
constexpr int kBlockWarps = 4;  // warps per block
constexpr int kBlocksPerSm = 4;  // least resident blocks per multiprocessor
constexpr int kRunItems = 16;  // rows per thread and tile
constexpr int kThreadColumns = 2;  // columns per thread
constexpr int kLanes = 2;  // threads side by side across a column tile
constexpr int kColumnTiles = 2;  // column tiles across the columns
constexpr bool kPartialColumns = true;  // the last tile has fewer columns
constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
constexpr bool kExchangesRows = false;  // lanes exchange rows in shared memory
constexpr int kTilesAbreast = 256;  // column tiles whose tiles are claimed together
constexpr int kGroupTiles = 32;  // tiles per group
constexpr int kSupergroupGroups = 4;  // groups per group of groups
constexpr bool kFoldsTiles = true;  // a tile folds the totals of tiles
constexpr bool kFoldsGroups = true;  // a tile folds the totals of groups
constexpr bool kChainsPrefixes = false;  // inclusive prefixes are chained over groups of groups
constexpr bool kExclusive = true;  // a result is the prefix before its item
constexpr bool kComplete = false;  // a line has one result more than items
constexpr bool kUneven = false;  // the last tile of a line is partial
constexpr bool kSeveralOperands = false;  // each item is made of several operands
constexpr int kInner = 6;  // columns side by side: the stride of the scanned dimension
constexpr int kStatusWords = 2;  // status words of a tile
constexpr bool kLinked = false;  // other GPUs read status words
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#ifdef __CUDACC__
// Tile status words: relaxed 64-bit accesses, which L1 does not serve, at the scope of the GPU, or of the system where
// other GPUs read them.
__device__ __forceinline__ void store_relaxed(unsigned long long* word, unsigned long long value) {
    if constexpr (kLinked)
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
    else
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* word) {
    unsigned long long value;
    if constexpr (kLinked)
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    else
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
#endif

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }
__device__ __forceinline__ State lift(Value x) { return x; }
__device__ __forceinline__ State combine(State older, State newer) { return older * newer; }

// Compensation of a product or a sum: the rounding errors of its steps, whose sum a thread's total regains.
__device__ __forceinline__ Value lose(Value lost, Value older, Value newer) {
    return fma(lost, newer, fma(older, newer, -(older * newer)));
}

// Infinities and NaN carry no rounding errors; -0 keeps its sign.
__device__ __forceinline__ Value regain(Value total, Value lost) {
    return total - total == 0 && total != 0 ? total + lost : total;  // finite and not 0
}

__device__ __forceinline__ State element(Input x) { return lift(x); }
__device__ __forceinline__ Output output_of(State state) { return state; }

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// The items of a line, of which a complete scan has one less than results.
__device__ __forceinline__ constexpr Position items_in(Position length) { return length - kComplete; }

enum LayoutFlags {
    kDense = 1,        // lies as the output
    kContiguous = 2,   // items of a line are adjacent, lines begin anywhere
    kMisaligned = 4,   // lines begin off the output's vector loads
    kFlat = 8,         // a warp copies its rows as one range
    kRepeated = 16,    // another operand once more, read further on
    kFirst = 32,       // the first operand that is read
    kAlongLine = 64,   // transposed: contiguous are the items of a line
    kPerStep = 128,    // one item for all columns of a thread
};

template <int flags, int geometry, int shift, int access = 1>
struct OperandLayout {
    static constexpr bool kIsDense = flags & kDense;
    static constexpr bool kInRows = flags & kContiguous;
    static constexpr bool kIsShifted = flags & kMisaligned;
    static constexpr bool kIsFlat = flags & kFlat;
    static constexpr bool kIsRepeated = flags & kRepeated;
    static constexpr bool kIsFirst = flags & kFirst;
    static constexpr bool kIsAlong = flags & kAlongLine;
    static constexpr bool kIsPerStep = flags & kPerStep;
    static constexpr int kGeometry = geometry;  // its place in Geometry
    static constexpr int kShift = shift;        // items by which it is read further on in scan order
    static constexpr int kAccess = access;      // transposed: items that a lane copies at once
};

template <class Item>
using PointerTo = Item*;

template <class Item>
using ConstPointerTo = const Item*;

template <template <class> class Of>
struct Operands {
    Of<Input> x;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kDense | kFirst, 0, 0>{}, packs.x...);
}

template <template <class> class Of>
struct Outputs {
    Of<Output> y;
};

// Call use(members of packs...) for each output.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_output(Use use, Packs&... packs) {
    use(packs.y...);
}

// ---- a column tile: kTileColumns columns, of which a thread takes kThreadColumns; its rows in tiles of kTileItems
constexpr int kTileColumns = kLanes * kThreadColumns;
constexpr int kTileItems = kBlockThreads / kLanes * kRunItems;
constexpr int kWarpRows = kWarpThreads / kLanes * kRunItems;  // rows in a warp's part of a tile
constexpr long long kStep = kReverse ? -kInner : kInner;  // items from one row to the next in scan order
constexpr int kPitch = kStridedColumns ? 1 : kThreadColumns;  // columns from one thread to the next
constexpr int kSpacing = kStridedColumns ? kLanes : 1;  // columns between those of a thread
constexpr int kStride = kExchangesRows ? kWarpThreads / kLanes : 1;  // rows from one access of a thread to its next
static_assert(kWarpThreads % kLanes == 0, "whole rows of a column tile");

// The largest power of two that divides a number of bytes, at most the 16 bytes of the widest access.
__device__ __forceinline__ constexpr int alignment_of(int bytes) { return (bytes & -bytes) < 16 ? bytes & -bytes : 16; }

template <typename Item, int count = kThreadColumns>
struct alignas(alignment_of(count * sizeof(Item))) Access {  // one access: a thread's columns of a row
    Item column[count];
};

template <typename Item>
struct Rows {
    Access<Item> row[kRunItems];
};

typedef Operands<Rows> TileRows;  // a thread's rows of a tile, of every operand with an item per row

template <class Item>
using OneRow = Access<Item>;

typedef Outputs<OneRow> Results;  // of a thread's columns in one row

typedef Access<State> States;  // one per column
typedef States ThreadState;    // of a row of a thread

struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
};

// The states that a function gives for each column.
template <typename Of>
__device__ __forceinline__ States each_column(Of of) {
    States s;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) s.column[c] = of(c);
    return s;
}

__device__ __forceinline__ States identities() {
    return each_column([](int) { return identity(); });
}

struct Place {  // a thread's columns, and its rows of a tile
    int lane, warp;
    int in_tile;       // index of the thread's columns in the column tile
    int there;         // column c of the thread exists if it is less than this
    long long line;    // number of the first one's line
    long long step;    // from the number of a line to that of the thread's next
    long long item;    // index of its first row in a dense operand
    Position first;    // scan position of the first row that it accesses
    Position scanned;  // and of the first one that it scans, another one where lanes exchange rows
    Position live;     // rows from `first` to the end of its columns
};

// How many of a thread's columns exist, at least; `left`: columns from its first one to the end of the column tile.
__device__ __forceinline__ int columns_of(int left) { return (left + kSpacing - 1) / kSpacing; }

// Whether row k of a thread exists; `live`: rows from its first to the end of its columns.
template <bool uneven = kUneven>
__device__ __forceinline__ bool is_live(Position live, int k) {
    return uneven ? live > k : !kPartialColumns || live > 0;
}

// One item for all columns of a thread.
template <typename Item>
__device__ __forceinline__ Access<Item> repeat(Item item) {
    Access<Item> items;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) items.column[c] = item;
    return items;
}

template <typename Item>
struct Source {         // an operand, as a thread reads it
    const Item* first;  // the first row of the next tile to read, of the thread, or of a warp that copies it together
    long long step;     // items from one row to the next in scan order
    const Item* begin;  // the operand's first item
    const Item* end;
    long long pitch = 0;  // of transposed operands: from one run of contiguous items to the next
};

// An operand that is read a row further on.
template <typename Item>
__device__ __forceinline__ Source<Item> shift_source(Source<Item> x) {
    x.first += x.step;
    return x;
}

typedef Operands<Source> Sources;  // of a thread

template <typename Item>
__device__ __forceinline__ void store_access(Item* to, const Access<Item>& y, int there) {
    if (kStridedColumns || (kRealigns && (size_t)to % alignof(Access<Item>) != 0)) {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            if (!kStridedColumns || !kPartialColumns || there > c) to[c * kSpacing] = y.column[c];
    } else {
        *reinterpret_cast<Access<Item>*>(to) = y;
    }
}

// Store the results of the k-th row that a thread accesses, if it exists.
__device__ __forceinline__ void store_row(const Outputs<PointerTo>& to, int k, const Results& results, Position live,
                                          int there) {
    if (!is_live(live, k * kStride)) return;
    const long long further = k * kStride * kStep;  // items
    for_each_output([&](auto* y, auto& result) { store_access(y + further, result, there); }, to, results);
}

// The place of a thread in a column tile, for the tile that begins at a scan position.
__device__ __forceinline__ Place thread_position(unsigned column_tile, Position begin, Position length) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads, in_tile = threadIdx.x % kLanes;
    const long long outer = column_tile / kColumnTiles;
    const long long column = column_tile % kColumnTiles * (long long)kTileColumns + in_tile * kPitch;
    const int there = columns_of(kPartialColumns ? (int)min(kInner - column, (long long)kTileColumns) : kTileColumns);
    const Position scanned = begin + (int)threadIdx.x / kLanes * kRunItems;
    const Position first = kExchangesRows ? begin + warp * kWarpRows + lane / kLanes : scanned;
    const long long line = outer * kInner + column;
    const long long item = (outer * length + memory_index(first, 1, length)) * kInner + column;
    return {lane, warp, in_tile, there, line, kSpacing, item, first, scanned, there > 0 ? length - first : 0};
}

// A dense operand of so many items. flat: a warp's rows are contiguous; `first` is the lowest item in memory of these.
template <bool flat, typename Item>
__device__ __forceinline__ Source<Item> dense(const Item* begin, const Place& at, long long items) {
    const int row = kReverse ? kWarpRows - 1 - at.lane / kLanes : at.lane / kLanes;
    const Item* const own = begin + at.item;
    return {flat ? own - at.in_tile * kThreadColumns - row * (long long)kInner : own, kStep, begin, begin + items};
}

struct Geometry {};  // all operands lie as the output

template <class Layout, class Item>
__device__ __forceinline__ Source<Item> source_of(Layout layout, const Item* begin, const Place& at, const Geometry&,
                                                  long long, Position, long long, long long items) {
    return dense<layout.kIsFlat>(begin, at, items);
}

// The operands as a thread reads them. The block scans `length` of the `items` of each of the `lines`, those after the
// first `before`.
__device__ __forceinline__ Sources sources_of(const Operands<ConstPointerTo>& operands, const Place& at,
                                              const Geometry& geometry, Position length, long long lines,
                                              long long items, long long before = 0) {
    Sources from;
    for_each_operand(
        [&](auto layout, auto& x, auto* begin) {
            x = source_of(layout, begin, at, geometry, before, length, lines, lines * items);
            if constexpr (layout.kShift > 0) x = shift_source(x);
        },
        from, operands);
    return from;
}

// Rows that do not exist read an operand's first access instead of none. With a second operand ptxas issues guarded
// loads a few at a time, each with its use: masked 64 x 4096 x 1024 falls to 0.65 of a copy (H200).
constexpr bool kStandsIn = kSeveralOperands && !kStridedColumns && !kRealigns;

template <bool uneven, bool per_step, typename Item>
__device__ __forceinline__ Rows<Item> load_rows(const Source<Item>& x, Position live, int there) {
    constexpr bool stands_in = kStandsIn && (kPartialColumns || uneven);
    Rows<Item> rows = {};
    const Item* from = x.first;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k, from += x.step) {
        if constexpr (per_step) {
            if (stands_in || is_live<uneven>(live, k))
                rows.row[k] = repeat(is_live<uneven>(live, k) ? *from : *x.begin);
        } else if constexpr (kStridedColumns) {
#pragma unroll
            for (int c = 0; c < kThreadColumns; ++c)
                if (is_live<uneven>(live, k) && (!kStridedColumns || !kPartialColumns || there > c))
                    rows.row[k].column[c] = from[c * kSpacing];
        } else if (stands_in || is_live<uneven>(live, k)) {
            rows.row[k] = *reinterpret_cast<const Access<Item>*>(is_live<uneven>(live, k) ? from : x.begin);
        }
    }
    return rows;
}

// A thread's rows of a tile of all operands.
__device__ __forceinline__ TileRows load(const Sources& from, Position live, int there) {
    TileRows rows;
    for_each_operand(
        [&](auto layout, auto& to, auto& x) {
            to = load_rows<(kUneven || layout.kShift > 0), layout.kIsPerStep>(x, live - layout.kShift, there);
        },
        rows, from);
    return rows;
}

// ---- the operator's functions, column by column; its conditions hold where they hold for every column
__device__ __forceinline__ States combine(const States& older, const States& newer) {
    return each_column([&](int c) { return combine(older.column[c], newer.column[c]); });
}

__device__ __forceinline__ States regain(const States& older, const States& newer) {
    return each_column([&](int c) { return regain(older.column[c], newer.column[c]); });
}

__device__ __forceinline__ States lose(const States& lost, const States& older, const States& newer) {
    return each_column([&](int c) { return lose(lost.column[c], older.column[c], newer.column[c]); });
}

// ---- the items of a thread
// The states of a tile's rows.
__device__ __forceinline__ Items lift_items(const TileRows& rows) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k)
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            s.item[k].column[c] = element(rows.x.row[k].column[c]);
    return s;
}

// The total of a thread's consecutive items, with the rounding errors of its steps; leaves their inclusive scan in
// place.
__device__ __forceinline__ ThreadState scan_items(Items& s) {
    ThreadState total = s.item[0];
    ThreadState lost = {};
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) {
        lost = lose(lost, total, s.item[k]);
        total = s.item[k] = combine(total, s.item[k]);
    }
    return s.item[kRunItems - 1] = regain(total, lost);
}

// The results of a row, by the states of its columns.
__device__ __forceinline__ Results result_of(const States& states) {
    Results results;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
        results.y.column[c] = output_of(states.column[c]);
    }
    return results;
}

// Call use(k, result) for each item, in order, given the prefix before the items.
template <class Use>
__device__ __forceinline__ void each_result(const ThreadState& prefix, const Items& s, Use use) {
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = combine(prefix, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

template <class Exchange, class... States>
__device__ __forceinline__ State exchange_parts(Exchange exchange, const States&... s) {
    return exchange(s...);
}

// ---- lanes
__device__ __forceinline__ State shuffle_up(const State& s, int distance) {
    return exchange_parts([&](auto part) { return __shfl_up_sync(kFullMask, part, distance); }, s);
}

__device__ __forceinline__ States shuffle_up(const States& s, int distance) {
    return each_column([&](int c) { return shuffle_up(s.column[c], distance); });
}

constexpr int kSlots = kWarpThreads / kLanes;  // threads of a warp along the same columns

// Inclusive scan across the lanes of a warp that are a multiple of `first` apart.
template <int first, class Of>
__device__ __forceinline__ Of scan_lanes(Of s, int lane) {
#pragma unroll
    for (int distance = first; distance < kWarpThreads; distance *= 2) {
        const Of older = shuffle_up(s, distance);
        if (lane >= distance) s = combine(older, s);
    }
    return s;
}

// The exclusive prefix of a slot in its warp, from the inclusive ones.
__device__ __forceinline__ States slot_prefix(const States& inclusive, int lane) {
    const States older = kSlots > 1 ? shuffle_up(inclusive, kLanes) : inclusive;
    return kSlots > 1 && lane >= kLanes ? older : identities();
}

// ---- tile status for decoupled look-back: value and launch epoch in one 64-bit word, accessed as a whole, so no fence
// is needed. A word of an earlier launch is invalid by its epoch, so nothing needs to be cleared between launches.
static_assert(sizeof(State) == kStatusWords * sizeof(unsigned), "a state is published in whole words");

struct TileStatus {               // the workspace
    unsigned long long* tickets;  // finished launches (high half), tickets taken in this one (low half)
    unsigned long long*
        word;  // kStatusWords per tile: launch epoch (high half), a piece of the tile's total (low half)
};

constexpr int kEpochShift = 32;  // an epoch is the high half of a word

struct StatusWords {
    unsigned long long piece[kStatusWords];
};

__device__ __forceinline__ unsigned long long take_ticket(const TileStatus& tile_status) {
    return atomicAdd(tile_status.tickets, 1ull);
}

// Epochs of launches: 1 to kEpochs, then 1 again, never 0, which a cleared word holds. Their number is even, so that odd
// and even epochs alternate there too (see inbox_of). A word of as many launches ago would be taken for one of this
// launch, if none of the launches in between had as many tiles.
constexpr unsigned kEpochs = 0xfffffffeu;

// The block with the last ticket of a launch advances the epoch for the next one.
__device__ __forceinline__ void advance_epoch(const TileStatus& tile_status, unsigned long long ticket, unsigned last) {
    if ((unsigned)ticket != last) return;
    const unsigned finished = (unsigned)(ticket >> kEpochShift) + 1;
    store_relaxed(tile_status.tickets, (unsigned long long)(finished == kEpochs ? 0 : finished) << kEpochShift);
}

__device__ __forceinline__ unsigned epoch_of(unsigned long long ticket) { return (unsigned)(ticket >> kEpochShift) + 1; }

__device__ __forceinline__ void publish(const TileStatus& tile_status, unsigned epoch, long long tile, State total) {
    unsigned piece[kStatusWords];
    memcpy(piece, &total, sizeof(State));
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k)
        store_relaxed(tile_status.word + tile * kStatusWords + k, (unsigned long long)epoch << kEpochShift | piece[k]);
}

__device__ __forceinline__ StatusWords load_status(const TileStatus& tile_status, long long tile) {
    StatusWords words;
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k) words.piece[k] = load_relaxed(tile_status.word + tile * kStatusWords + k);
    return words;
}

__device__ __forceinline__ bool is_stale(const StatusWords& words, unsigned epoch) {
    bool missing = false;
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k) missing = missing || words.piece[k] >> kEpochShift != epoch;
    return missing;
}

__device__ __forceinline__ State value_of(const StatusWords& words) {
    unsigned piece[kStatusWords];
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k) piece[k] = (unsigned)words.piece[k];
    State total;
    memcpy(&total, piece, sizeof(State));
    return total;
}

constexpr long long kMostBlocks = 0xffffffffLL;  // that an unsigned number counts

// ---- look-back: each column's totals are folded by kFoldLanes lanes of one warp
constexpr int kFoldColumns = kTileColumns > kBlockWarps ? kTileColumns / kBlockWarps : 1;  // columns per warp
constexpr int kFoldWarps = kTileColumns / kFoldColumns;  // warps that fold
constexpr int kFoldLanes = kWarpThreads / kFoldColumns;

constexpr int kTileLooks = !kFoldsTiles               ? 0
                           : kGroupTiles > kFoldLanes ? kGroupTiles / kFoldLanes
                                                      : 1;  // tiles that a lane folds

constexpr int kGroupLooks = !kFoldsGroups                    ? 0
                            : kSupergroupGroups > kFoldLanes ? kSupergroupGroups / kFoldLanes
                                                             : 1;  // groups likewise

constexpr int kFoldLooks = kFoldsTiles || kFoldsGroups ? kTileLooks + kGroupLooks + kChainsPrefixes : 1;
static_assert(kTileColumns <= kBlockThreads && kFoldColumns <= kWarpThreads, "a lane for every column");

// Number of groups of so many tiles, the last of which may be partial.
__device__ __forceinline__ int groups_of(int tiles, int size) { return (tiles + size - 1) / size; }

// A column tile's column in an array of the states of its threads.
__device__ __forceinline__ State& column_of(States* states, int column) {
    return states[column / kThreadColumns].column[column % kThreadColumns];
}

// Replace the totals of a column's warps by the exclusive prefix of each; returns the total of the tile.
__device__ __forceinline__ State scan_warp_totals(States (*warp_aggregate)[kLanes], int column) {
    State total = identity();
    for (int w = 0; w < kBlockWarps; ++w) {
        State& warps = column_of(warp_aggregate[w], column);
        const State newer = warps;
        warps = total;
        total = combine(total, newer);
    }
    return total;
}

// Replace the carry-in of a column tile's columns in `ahead` by the exclusive prefix of a tile. The lanes of a column fold it
// in an order that depends on the tile's position alone. Each total is published as soon as it is known, by the lane
// that holds it, because other blocks wait for it. Called by the first kFoldWarps warps.
// carry_of(column, begins): the carry-in of a column, where nothing is chained to it. `launch` stays in shared
// memory, as registers are scarce.
template <class CarryOf>
__device__ __forceinline__ void look_back(const TileStatus& tile_status, const unsigned& epoch, unsigned column_tile,
                                          int tile, int tiles_a_line, States (*warp_aggregate)[kLanes], States* ahead,
                                          CarryOf carry_of) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const int folded = warp * kFoldColumns + lane % kFoldColumns;  // the column
    const bool last = lane / kFoldColumns == kFoldLanes - 1;       // the lane that holds the column's totals
    const int group = tile / kGroupTiles, stretch = tile / (kGroupTiles * kSupergroupGroups);
    // a column has statuses of its tiles, then of groups, then of groups of groups
    const int groups_at = kFoldsTiles ? tiles_a_line : 0;
    const int stretches_at = groups_at + (kFoldsGroups ? groups_of(tiles_a_line, kGroupTiles) : 0);
    const int end = stretches_at + (kChainsPrefixes ? groups_of(tiles_a_line, kGroupTiles * kSupergroupGroups) : 0);
    const long long statuses = (long long)column_tile * kTileColumns * end + folded;
    const auto status_of = [&](int index) { return statuses + (long long)index * kTileColumns; };

    // the totals that this lane folds: of tiles, then of groups, then the chained prefix
    bool needed[kFoldLooks], waits[kFoldLooks];
    long long place[kFoldLooks];
    StatusWords words[kFoldLooks];
#pragma unroll
    for (int k = 0; k < kFoldLooks; ++k) {
        const int own_tile = group * kGroupTiles + lane / kFoldColumns * kTileLooks + k;
        const int own_group = stretch * kSupergroupGroups + lane / kFoldColumns * kGroupLooks + k - kTileLooks;
        const bool of_tiles = k < kTileLooks, of_groups = !of_tiles && k < kTileLooks + kGroupLooks;
        needed[k] = of_tiles ? own_tile < tile : of_groups ? own_group < group : last && stretch > 0;
        place[k] = status_of(of_tiles ? own_tile : of_groups ? groups_at + own_group : stretches_at + stretch - 1);
        waits[k] = needed[k];
    }
    const auto look = [&] {  // at all missing words at once: one memory round trip
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k)
            if (waits[k]) words[k] = load_status(tile_status, place[k]);
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k) waits[k] = waits[k] && is_stale(words[k], epoch);
    };
    const auto waiting = [&](int begin, int end) {
        bool any = false;
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k) any = any || (k >= begin && k < end && waits[k]);
        return any;
    };
    const auto fold = [&](int begin, int end) {
        State sum = identity();
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k)
            if (k >= begin && k < end && needed[k]) sum = combine(sum, value_of(words[k]));
        return scan_lanes<kFoldColumns>(sum, lane);
    };

    // ---- publish the tile's total before looking back: other blocks wait for it
    State total = identity();
    if (last) {
        total = scan_warp_totals(warp_aggregate, folded);
        if (kFoldsTiles) publish(tile_status, epoch, status_of(tile), total);
    }

    // ---- fold the tiles above it in its group, then the groups above it, and the groups of groups above those
    State tiles = identity(), groups = identity();
    if constexpr (kFoldsTiles) {
        while (waiting(0, kTileLooks)) look();
        tiles = fold(0, kTileLooks);
    }
    if (kFoldsGroups && last && tile % kGroupTiles == kGroupTiles - 1)
        publish(tile_status, epoch, status_of(groups_at + group), kFoldsTiles ? combine(tiles, total) : total);
    while (waiting(kTileLooks, kFoldLooks)) look();
    if constexpr (kFoldsGroups) groups = fold(kTileLooks, kTileLooks + kGroupLooks);
    if (last) {
        State before = carry_of(folded, !kChainsPrefixes || stretch == 0);
        if (kChainsPrefixes && stretch > 0) before = value_of(words[kFoldLooks - 1]);
        if (kFoldsGroups) before = combine(before, groups);
        if (kFoldsTiles) before = combine(before, tiles);
        if (kChainsPrefixes && tile % (kGroupTiles * kSupergroupGroups) == kGroupTiles * kSupergroupGroups - 1)
            publish(tile_status, epoch, status_of(stretches_at + stretch), combine(before, total));
        column_of(ahead, folded) = before;
    }
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
prod_f64_n65536_inner6_exclusive_columns_lookback(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines, unsigned long long* workspace) {
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Geometry geometry = {};
    constexpr Position length = kLength;
    const TileStatus tile_status = {workspace, workspace + 2};
    __shared__ States warp_aggregate[kBlockWarps][kLanes];  // later the warp's exclusive prefix in the tile
    __shared__ States ahead[kLanes];               // the carry-in, later the tile's exclusive prefix
    __shared__ unsigned epoch;                    // epoch of this launch

    // ---- one tile per block, by rows of tiles of kTilesAbreast column tiles: blocks start in the order of their index,
    // so the tiles above are resident, or done
    const unsigned long long ticket = threadIdx.x == 0 ? take_ticket(tile_status) : 0;  // arrives while the tile is loaded
    const int tiles_a_line = (int)((length + kTileItems - 1) / kTileItems);
    const unsigned column_tiles = (unsigned)(lines / kInner) * kColumnTiles;
    const unsigned together = (unsigned)min((long long)kTilesAbreast * tiles_a_line, kMostBlocks);  // tiles of these
    const unsigned first_column_tile = blockIdx.x / together * kTilesAbreast;
    const unsigned abreast = min(column_tiles - first_column_tile, (unsigned)kTilesAbreast);
    const unsigned column_tile = first_column_tile + blockIdx.x % together % abreast;
    const int tile = blockIdx.x % together / abreast;  // index in its column tile
    const Place at = thread_position(column_tile, (Position)tile * kTileItems, length);
    const int lane = at.lane, warp = at.warp, place = at.in_tile;
    const Sources from = sources_of(operands, at, geometry, length, lines, length);

    // ---- load and scan the rows of the thread, then across the slots of the warp
    const TileRows rows = load(from, items_in(at.live), at.there);
    Items s = lift_items(rows);
    const States inclusive = scan_lanes<kLanes>(scan_items(s), lane);
    const States inside = slot_prefix(inclusive, lane);
    if (lane >= kWarpThreads - kLanes) warp_aggregate[warp][place] = inclusive;
    if (threadIdx.x < kLanes) ahead[place] = identities();
    if (threadIdx.x == 0) epoch = epoch_of(ticket), advance_epoch(tile_status, ticket, gridDim.x - 1);
    __syncthreads();

    // ---- look-back
    const auto carry_of = [&](int folded, bool) { return column_of(ahead, folded); };
    if (warp < kFoldWarps) look_back(tile_status, epoch, column_tile, tile, tiles_a_line, warp_aggregate, ahead, carry_of);
    __syncthreads();

    // ---- store
    Outputs<PointerTo> to = outputs;
    for_each_output([&](auto& y) { y += at.item; }, to);
    States prefix = combine(ahead[place], warp_aggregate[warp][place]);
    if constexpr (kSlots > 1) prefix = combine(prefix, inside);
    each_result(prefix, s, [&](int k, const Results& results) {
        store_row(to, k, results, at.live, at.there);
    });
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(prod_f64_n65536_inner6_exclusive_columns_lookback,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
