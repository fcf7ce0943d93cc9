// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n16384-transposed
//          16384 float32 items, transposed, float32 out
// plan     transposed: threads 256, items 32, tiles 64, vector 1, stages 3, blocks 2
//          lines of 16384 are strided in the input, contiguous in the output: tiles are transposed in shared memory
// numbers  rule: transposed
// target   sm_90
// content  sha256 e4bef409cbfb5ce0 of everything below this banner
// again    scanops generate prod-f32-n16384-transposed --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32

typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: transposed
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr int kWarpThreads = 32;
constexpr unsigned kFullMask = 0xffffffffu;  // all threads of a warp
constexpr int kLength = 16384;  // items per line
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kBlockThreads = 256;  // threads per block
constexpr int kBlockWarps = 8;  // warps per block
constexpr bool kToRows = true;  // results are contiguous along a line, else across lines
constexpr int kBlocksPerSm = 2;  // least resident blocks per multiprocessor
constexpr int kRunItems = 32;  // positions per thread and tile
constexpr int kThreadColumns = 1;  // adjacent lines per thread
constexpr int kLanes = 32;  // threads side by side across the lines
constexpr bool kStridedColumns = false;  // a thread's lines are kLanes apart, and stored one by one
constexpr bool kExchangesRows = true;  // lanes exchange items in shared memory
constexpr bool kLoops = true;  // a line has several tiles
constexpr int kStages = 3;  // tiles in the ring in shared memory
constexpr bool kZeroFills = false;  // items that do not exist are 0
constexpr bool kExclusive = false;  // a result is the prefix before its item
constexpr bool kUneven = false;  // the last tile of a line is partial
constexpr bool kSerial = false;  // each result is computed from the one before it
constexpr int kInner = 1;  // lines side by side in the output
constexpr int kStridedOperands = 4;  // operands that may have strides of their own
constexpr bool kCopiesAsync = true;  // the target has cp.async
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#ifdef __CUDACC__
// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                              \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)
#endif

#ifdef __CUDACC__
// Asynchronous global-to-shared copy of 4, 8 or 16 bytes (cp.async), 16 with L1 bypass (cp.async.cg) if so asked.
// Fewer bytes pass through a register, and all of them where a target has no cp.async.
template <bool bypasses = false, class Item>
__device__ __forceinline__ void copy_async(Item* shared, const void* global) {
    [[maybe_unused]] const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    if constexpr (!kCopiesAsync || sizeof(Item) < 4)
        *shared = *static_cast<const Item*>(global);
    else if constexpr (bypasses && sizeof(Item) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(global), "n"(sizeof(Item)) : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    if constexpr (kCopiesAsync) asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    if constexpr (kCopiesAsync) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
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

// What is not read is 0 in registers. In shared memory it stays, unless all items of a thread decide by which
// instructions it computes, and so the bits of its results.
template <class Slot>
__device__ __forceinline__ void leave_out([[maybe_unused]] Slot& slot) {
    if constexpr (kZeroFills) slot = {};
}

struct Neighbours {               // the dimension along which lines are adjacent in some operand
    long long size;               // size of the dimension
    long long lines;              // difference of the numbers of adjacent lines
    long long operand_stride[4];  // the same in items of each operand
};

constexpr int kMostDims = 24;  // of a tensor with strides of its own

// ---- operands with strides: sizes and strides, in items, of the dimensions that are not scanned
struct Strides {
    long long stride[kMostDims], step;  // a step is the stride of the scanned dimension
};

struct Geometry {
    int rank;
    long long size[kMostDims];
    Strides operand[kStridedOperands];
};

__device__ __forceinline__ long long line_offset(long long line, const Geometry& geometry, const Strides& strides) {
    long long offset = 0;
    for (int d = geometry.rank - 1; d >= 0; --d) {
        const long long rest = line / geometry.size[d];  // one division: it takes dozens of instructions
        offset += (line - rest * geometry.size[d]) * strides.stride[d];
        line = rest;
    }
    return offset;
}

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
    use(OperandLayout<kFirst, 0, 0, 4>{}, packs.x...);
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
constexpr long long kStep = kReverse ? -kInner : kInner;  // items from one row to the next in scan order
constexpr int kPitch = kStridedColumns ? 1 : kThreadColumns;  // columns from one thread to the next
constexpr int kSpacing = kStridedColumns ? kLanes : 1;  // columns between those of a thread
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

template <typename Item>
struct Source {         // an operand, as a thread reads it
    const Item* first;  // the first row of the next tile to read, of the thread, or of a warp that copies it together
    long long step;     // items from one row to the next in scan order
    const Item* begin;  // the operand's first item
    const Item* end;
    long long pitch = 0;  // of transposed operands: from one run of contiguous items to the next
};

typedef Operands<Source> Sources;  // of a thread

// Move on to the next tile.
__device__ __forceinline__ void advance(Sources& from) {
    for_each_operand([&](auto, auto& x) { x.first += kTileItems * x.step; }, from);
}

// Likewise; `to`: the first row of the next tile to store.
__device__ __forceinline__ void advance(Outputs<PointerTo>& to) {
    for_each_output([&](auto& y) { y += kTileItems * kStep; }, to);
}

static_assert(kLanes == kWarpThreads, "a warp for each part of a tile");

// Items that are contiguous in memory, and in a slab.
constexpr bool kAlong = true;    // those of a line
constexpr bool kAcross = false;  // those of neighbouring lines at one position

template <class Item>
struct alignas(16) Slab {  // a warp's part of a tile
    Item item[kTileColumns * kRunItems];
};

// The position of a thread among the block's lines, the first of which is `line`.
__device__ __forceinline__ Place thread_position(long long line, int lines, long long step, Position length) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const Position first = warp * kRunItems;
    // results along lines: the lowest in memory of the warp's; across lines: the thread's
    const long long item =
        kToRows ? line * length + memory_index(first, kRunItems, length)
                : (line / kInner * length + memory_index(first, 1, length)) * kInner + line % kInner + lane * kPitch;
    const int there = columns_of(lines - lane * kPitch);
    return {lane,
            warp,
            lane,
            there,
            line + lane * kPitch * step,
            kSpacing * step,
            item,
            first,
            first,
            there > 0 ? length - first : 0};
}

// `line`: the first of the block's lines at index 0; `beside`: items from a line to its neighbour.
template <bool order, typename Item>
__device__ __forceinline__ Source<Item> source_of(const Item* line, [[maybe_unused]] long long beside,
                                                  [[maybe_unused]] long long step, Position first, Position length) {
    if constexpr (order == kAlong)
        return {line + memory_index(first, kRunItems, length), kReverse ? -1 : 1, {}, {}, beside};
    const long long forward = kReverse ? -step : step;
    return {line + memory_index(first, 1, length) * step, forward, {}, {}, forward};
}

// Items of one line that a lane reads or writes at once in shared memory.
template <typename Item>
constexpr int kPieceItems = kRunItems * sizeof(Item) < 16 ? kRunItems : 16 / sizeof(Item);

// Index of an item of a run in a slab. Pieces of lines are swizzled so that lanes access different banks.
template <bool order, typename Item>
__device__ __forceinline__ int slab_index(int run, int item) {
    if (order == kAcross) return run * kTileColumns + item;
    constexpr int pieces = kRunItems / kPieceItems<Item>;                // pieces per line
    constexpr int swizzled = kPitch * pieces > 8 ? kPitch : 8 / pieces;  // lines with the same swizzle
    static_assert(order == kAcross || (kRunItems % kPieceItems<Item> == 0 && pieces <= 8), "whole pieces, at most 8");
    const int piece = (run * pieces + item / kPieceItems<Item>)^(run / swizzled % 8);
    return piece * kPieceItems<Item> + item % kPieceItems<Item>;
}

// Move a warp's part of a tile to a slab, by asynchronous copies, or from it: groups of lanes move runs of contiguous
// items, which are `pitch` items apart in global memory. Of the warp's lines `lines` exist, of its positions `live`.
template <bool store, bool order, int access, typename Item, typename Pointer>
__device__ __forceinline__ void move_slab(Item* slab, Pointer first, long long pitch, int lines, Position live) {
    constexpr int runs = order == kAlong ? kTileColumns : kRunItems, items = order == kAlong ? kRunItems : kTileColumns;
    constexpr int lanes = items / access < kWarpThreads ? items / access : kWarpThreads;  // lanes per group
    static_assert(runs % (kWarpThreads / lanes) == 0 && items % (lanes * access) == 0,
                  "groups of lanes move whole runs");
    const int run = threadIdx.x % kWarpThreads / lanes, item = threadIdx.x % kWarpThreads % lanes * access;
    const auto run_exists = [&](int k) { return order == kAlong ? k < lines : !kUneven || k < live; };
    const auto item_exists = [&](int k) {
        return order == kAcross ? k < lines : !kUneven || (kReverse ? k >= kRunItems - live : k < live);
    };
    if (!kZeroFills && !item_exists(item)) return;
    first += run * pitch + item;
#pragma unroll
    for (int k = 0; k < runs; k += kWarpThreads / lanes, first += kWarpThreads / lanes * pitch)
#pragma unroll
        for (int part = 0; part < items; part += lanes * access) {
            auto& slot = *reinterpret_cast<Access<Item, access>*>(slab + slab_index<order, Item>(run + k, item + part));
            const bool exists = run_exists(run + k) && ((!kZeroFills && part == 0) || item_exists(item + part));
            if constexpr (!store)
                exists ? copy_async<true>(&slot, first + part) : leave_out(slot);
            else if (exists)
                *reinterpret_cast<Access<Item, access>*>(first + part) = slot;
        }
}

// Move a lane's lines from or to a slab in which they are contiguous.
template <bool store, typename Item>
__device__ __forceinline__ void move_lines(Item* slab, Rows<Item>& rows) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
#pragma unroll
        for (int begin = 0; begin < kRunItems; begin += kPieceItems<Item>) {
            const int place = slab_index<kAlong, Item>(threadIdx.x % kWarpThreads * kPitch + c * kSpacing, begin);
            auto& slot = *reinterpret_cast<Access<Item, kPieceItems<Item>>*>(slab + place);
            Access<Item, kPieceItems<Item>> piece;
            if (!store) piece = slot;
#pragma unroll
            for (int k = 0; k < kPieceItems<Item>; ++k) {
                Item& item = rows.row[kReverse ? kRunItems - 1 - begin - k : begin + k].column[c];
                if (store)
                    piece.column[k] = item;
                else
                    item = piece.column[k];
            }
            if (store) slot = piece;
        }
}

// This lane's items of a tile that arrived.
template <bool order, typename Item>
__device__ __forceinline__ Rows<Item> load(Item* slab) {
    Rows<Item> rows;
    if constexpr (order == kAlong) {
        move_lines<false>(slab, rows);
        return rows;
    }
    slab += threadIdx.x % kWarpThreads * kPitch;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k, slab += kTileColumns) {
        if constexpr (!kStridedColumns) rows.row[k] = *reinterpret_cast<const Access<Item>*>(slab);
#pragma unroll
        for (int c = 0; c < kThreadColumns && kStridedColumns; ++c) rows.row[k].column[c] = slab[c * kSpacing];
    }
    return rows;
}

// Store a warp's results of a tile, contiguous along their lines, by way of a slab.
template <int access, class Item>
__device__ __forceinline__ void store_slab(Slab<Item>& slab, Item* to, Rows<Item>& rows, long long pitch, int lines,
                                           Position live) {
    __syncwarp();  // all lanes have read what the slab held
    move_lines<true>(slab.item, rows);
    __syncwarp();
    move_slab<true, kAlong, access>(slab.item, to, pitch, lines, live);
}

template <class Item>
using Slabs = Slab<Item>[kStages][kBlockWarps];

struct Ring : Operands<Slabs> {  // multistage ring of tiles, by stage and warp: a warp reads what its lanes copied
};

// Issue this lane's copies of a tile of all operands.
__device__ __forceinline__ void copy(Ring& ring, int stage, const Sources& from, int lines, Position live) {
    const int warp = threadIdx.x / kWarpThreads;
    for_each_operand(
        [&](auto layout, auto& slabs, auto& x) {
            move_slab<false, layout.kIsAlong, layout.kAccess>(slabs[stage][warp].item, x.first, x.pitch, lines, live);
        },
        ring, from);
}

// This thread's rows of a tile that arrived.
__device__ __forceinline__ TileRows staged(Ring& ring, int stage, const Sources&) {
    const int warp = threadIdx.x / kWarpThreads;
    TileRows rows;
    for_each_operand([&](auto layout, auto& to, auto& slabs) { to = load<layout.kIsAlong>(slabs[stage][warp].item); },
                     rows, ring);
    return rows;
}

// `line`: the first of the block's lines.
__device__ __forceinline__ Sources sources_of(const Operands<ConstPointerTo>& operands, const Place& at, long long line,
                                              const Geometry& geometry, const Neighbours& neighbours, Position length) {
    Sources from;
    for_each_operand(
        [&](auto layout, auto& x, auto* begin) {
            const Strides& strides = geometry.operand[layout.kGeometry];
            x = source_of<layout.kIsAlong>(begin + line_offset(line, geometry, strides),
                                           neighbours.operand_stride[layout.kGeometry], strides.step, at.first, length);
        },
        from, operands);
    return from;
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

__device__ __forceinline__ State shuffle(const State& s, int source) {
    return exchange_parts([&](auto part) { return __shfl_sync(kFullMask, part, source); }, s);
}

__device__ __forceinline__ States shuffle_up(const States& s, int distance) {
    return each_column([&](int c) { return shuffle_up(s.column[c], distance); });
}

constexpr int kSlots = kWarpThreads / kLanes;  // threads of a warp along the same columns

// The states of the warp's last slot.
__device__ __forceinline__ States of_last_slot(const States& s) {
    const int source = kWarpThreads - kLanes + threadIdx.x % kLanes;
    return kSlots == 1 ? s : each_column([&](int c) { return shuffle(s.column[c], source); });
}

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

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
prod_f32_n16384_transposed_transposed(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, const __grid_constant__ Geometry geometry, const Neighbours neighbours) {
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Position length = kLength;
    dynamic_shared(Ring, ring);
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_aggregates[kLoops ? 2 : 1][kBlockWarps][kLanes];

    // ---- a block scans kTileColumns adjacent lines
    const long long column_tiles = (neighbours.size + kTileColumns - 1) / kTileColumns;  // the last one may be partial
    const long long other = blockIdx.x / column_tiles;  // index of all other dimensions
    const long long first_line = blockIdx.x % column_tiles * kTileColumns;
    const int lines = (int)min(neighbours.size - first_line, (long long)kTileColumns);
    const long long line_step = kToRows ? neighbours.lines : 1;  // from a line to its neighbour
    const long long line = (other / line_step * neighbours.size + first_line) * line_step + other % line_step;
    const Place at = thread_position(line, lines, line_step, length);
    Sources from = sources_of(operands, at, line, geometry, neighbours, length);
    Outputs<PointerTo> to = outputs;
    for_each_output([&](auto& y) { y += at.item; }, to);
    [[maybe_unused]] const int lane = at.lane, warp = at.warp, place = at.in_tile;
    const int tiles_a_line = kLoops ? (int)((length + kTileItems - 1) / kTileItems) : 1;
    // the prefix of the first tile
    States carry = identities();
    if (kBlockWarps > 1 && kLoops && threadIdx.x < kLanes) warp_aggregates[0][0][place] = carry;

    // ---- prologue: issue the copies of the first tiles
    const auto copy_tile = [&](int tile) {
        if (tile < tiles_a_line) {
            copy(ring, tile % kStages, from, lines, length - at.first - (Position)tile * kTileItems);
            advance(from);
        }
        copy_async_commit();
    };
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) copy_tile(tile);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTileItems;  // scan position of the tile's first row
        copy_tile(tile + kStages - 1);
        copy_async_wait<kStages - 1>();
        if constexpr (kExchangesRows) __syncwarp();
        Items s = lift_items(staged(ring, tile % kStages, from));

        // ---- scan the rows of the thread, then across the slots of the warp
        const States inclusive = scan_lanes<kLanes>(scan_items(s), lane);
        const States inside = slot_prefix(inclusive, lane);
        const bool last_slot = lane >= kWarpThreads - kLanes;

        // ---- combine the totals of the warps before this one, in order
        States prefix = carry;
        if constexpr (kBlockWarps > 1) {
            auto& totals = warp_aggregates[tile % 2];
            if (last_slot && warp < kBlockWarps - 1) totals[warp + 1][place] = inclusive;
            __syncthreads();
            if constexpr (kLoops) prefix = totals[0][place];
            if constexpr (kSerial) {
#pragma unroll 1  // fewer instructions than a select or a branch for each of the warps
                for (int w = 1; w <= warp; ++w) prefix = combine(prefix, totals[w][place]);
            } else {
#pragma unroll
                for (int w = 1; w < kBlockWarps; ++w)
                    if (w <= warp) prefix = combine(prefix, totals[w][place]);
            }
            if (kLoops && last_slot && warp == kBlockWarps - 1)  // the prefix of the next tile
                warp_aggregates[(tile + 1) % 2][0][place] = combine(prefix, inclusive);
        } else {
            carry = combine(carry, of_last_slot(inclusive));
        }
        if constexpr (kSlots > 1) prefix = combine(prefix, inside);

        // ---- store
        Outputs<Rows> rows;
        each_result(prefix, s, [&](int k, const Results& results) {
            for_each_output([&](auto& all, auto& result) { all.row[k] = result; }, rows, results);
        });
        store_slab<4>(*reinterpret_cast<Slab<Output>*>(&ring.x[tile % kStages][warp]), to.y, rows.y,
            line_step * length, lines, length - at.first - begin);
        advance(to);
        if constexpr (kExchangesRows) __syncwarp();  // all lanes have read what the next copies overwrite
    }
}

static_assert((sizeof(Ring) + 15) / 16 * 16 == 98304, "shared memory as planned");

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    cudaError_t error =
        cudaFuncSetAttribute(prod_f32_n16384_transposed_transposed,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(prod_f32_n16384_transposed_transposed,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
