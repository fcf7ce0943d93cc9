// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate
//          2048 bfloat16 items of stride 64, a float32 gate, reverse, initial, final, strided_gate, float32 out
// plan     columns: threads 512, items 16, tiles 8, columns 32, vector 1, strided_columns False, stages 0, blocks 1
//          the scanned dimension has stride 64: 32 neighbouring columns per block
// numbers  measured: columns strided, rows up to 8192, any GPU
//          tuned: threads, items, columns, vector, strided_columns, stages, blocks; the others follow from the spec
// target   sm_90
// content  sha256 7e1d821fcf94b8a9 of everything below this banner
// again    scanops generate linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef float Gate;  // float32
typedef float Output;  // float32

typedef float Carry;  // float32: carry-in and carry-out of a line
typedef float Value;  // accumulator type

struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
};

// ---- the plan: columns
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr int kWarpThreads = 32;
constexpr unsigned kFullMask = 0xffffffffu;  // all threads of a warp
constexpr int kLength = 2048;  // items per line
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kBlockThreads = 512;  // threads per block
constexpr int kBlockWarps = 16;  // warps per block
constexpr int kBlocksPerSm = 1;  // least resident blocks per multiprocessor
constexpr int kRunItems = 16;  // rows per thread and tile
constexpr int kThreadColumns = 1;  // columns per thread
constexpr int kLanes = 32;  // threads side by side across a column tile
constexpr int kColumnTiles = 2;  // column tiles across the columns
constexpr bool kPartialColumns = false;  // the last tile has fewer columns
constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
constexpr bool kExchangesRows = false;  // lanes exchange rows in shared memory
constexpr bool kLoops = true;  // a column has several tiles
constexpr bool kExclusive = false;  // a result is the prefix before its item
constexpr bool kComplete = false;  // a line has one result more than items
constexpr bool kUneven = false;  // the last tile of a line is partial
constexpr bool kSeveralOperands = true;  // each item is made of several operands
constexpr bool kSerial = true;  // each result is computed from the one before it
constexpr bool kAppends = true;  // a single item is appended by an operation of its own
constexpr int kInner = 64;  // columns side by side: the stride of the scanned dimension
constexpr int kStridedOperands = 4;  // operands that may have strides of their own
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#ifdef __CUDACC__
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    float value;
    asm("mov.b32 %0, { %1, %2 };" : "=f"(value) : "h"((unsigned short)0), "h"(bits));
    return value;
}
#endif

// ---- operator linear: y[i] = g[i] * y[i-1] + x[i]
__device__ __forceinline__ bool is_zero(Value x) { return !(x != 0); }
__device__ __forceinline__ State identity() { return {1, 0}; }
__device__ __forceinline__ State lift(Value x, Value g) { return {g, x}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = is_zero(older.value) ? newer.value : newer.gate * older.value + newer.value;
    return s;
}

__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = newer.gate * older.value + newer.value;
    return s;
}

__device__ __forceinline__ State element(Input x, Gate g) { return lift(bfloat_to_float(x), g); }
__device__ __forceinline__ Output output_of(State state) { return state.value; }

// Carry-in: the state of a result that is carried in.
__device__ __forceinline__ State begin_line(const Carry* carry_in) {
    const Value x = *carry_in;
    return {1, x};
}

// Carry-out: the result of the whole line.
__device__ __forceinline__ Carry end_line(State state) { return state.value; }

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// The items of a line, of which a complete scan has one less than results.
__device__ __forceinline__ constexpr Position items_in(Position length) { return length - kComplete; }

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
    Of<Gate> g;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kDense | kFirst, 0, 0>{}, packs.x...);
    use(OperandLayout<0, 2, 0>{}, packs.g...);
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

__device__ __forceinline__ States empty_state() { return identities(); }

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

// Move on to the next tile.
__device__ __forceinline__ void advance(Sources& from) {
    for_each_operand([&](auto, auto& x) { x.first += kTileItems * x.step; }, from);
}

// Likewise; `to`: the first row of the next tile to store.
__device__ __forceinline__ void advance(Outputs<PointerTo>& to) {
    for_each_output([&](auto& y) { y += kTileItems * kStep; }, to);
}

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

// An operand with strides of its own.
template <typename Item>
__device__ __forceinline__ Source<Item> placed(const Item* begin, const Place& at, const Geometry& geometry,
                                               int operand, Position length, long long lines) {
    const Strides& strides = geometry.operand[operand];
    const long long step = strides.step;
    const Item* const last = begin + line_offset(lines - 1, geometry, strides) + (length - 1) * step;
    const Item* const line = begin + line_offset(at.line, geometry, strides);
    return {line + memory_index(at.first, 1, length) * step, kReverse ? -step : step, begin, last + 1};
}

// `before`: rows in front of those that the block scans, of `length` of each of the `lines`.
template <class Layout, class Item>
__device__ __forceinline__ Source<Item> source_of(Layout layout, const Item* begin, const Place& at,
                                                  const Geometry& geometry, long long before, Position length,
                                                  long long lines, long long items) {
    if constexpr (layout.kIsDense)
        return dense<layout.kIsFlat>(begin, at, items);
    else
        return placed(begin + before * geometry.operand[layout.kGeometry].step, at, geometry, layout.kGeometry,
                      items_in(length), lines);
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

__device__ __forceinline__ States append(const States& older, const States& newer) {
    return each_column([&](int c) { return append(older.column[c], newer.column[c]); });
}

// The carry-in of the thread's lines, of which `there` exist; `step`: items from that of a line to that of the next.
__device__ __forceinline__ States begin_lines(const Carry* carry_in, long long step, int there) {
    return each_column([&](int c) { return there > c ? begin_line(carry_in + c * step) : identity(); });
}

// ---- the items of a thread
// The states of a tile's rows.
__device__ __forceinline__ Items lift_items(const TileRows& rows) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k)
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            s.item[k].column[c] = element(rows.x.row[k].column[c], rows.g.row[k].column[c]);
    return s;
}

// The total of a thread's consecutive items.
__device__ __forceinline__ ThreadState scan_items(const Items& s) {
    ThreadState total = kAppends ? append(empty_state(), s.item[0]) : s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) total = append(total, s.item[k]);
    return total;
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

// Call use(k, result) for each item, in order, given the prefix before the items. Each follows from the one before.
template <class Use>
__device__ __forceinline__ void each_result(const ThreadState& prefix, const Items& s, Use use) {
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = append(last, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

// The state after the first `count` items, of which there is one at least.
__device__ __forceinline__ ThreadState state_after(int count, const ThreadState& prefix, const Items& s) {
    ThreadState last = prefix, after = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        last = append(last, s.item[k]);
        if (count == k + 1) after = last;
    }
    return after;
}

// Store the carry-out if these rows hold the lines' last one: `rest` rows remain from the first of these; `there`: how
// many lines exist; `step`: items from the carry-out of a line to that of the next.
__device__ __forceinline__ void end_items(Carry* carry_out, long long step, Position rest, int there,
                                          const States& prefix, const Items& s) {
    if (rest < 1 || rest > kRunItems) return;
    const States last = state_after((int)rest, prefix, s);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
        if (there > c) carry_out[c * step] = end_line(last.column[c]);
}

template <class Exchange, class... States>
__device__ __forceinline__ State exchange_parts(Exchange exchange, const States&... s) {
    return {exchange(s.gate...), exchange(s.value...)};
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
linear_bf16_n2048_inner64_gate_f32_reverse_initial_final_strided_gate_columns(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, const Gate* gate, Output* output, const __grid_constant__ Geometry geometry, long long
    lines, const Carry* carry_in, long long carry_in_step, Carry* carry_out) {
    const Operands<ConstPointerTo> operands = {input, gate};
    const Outputs<PointerTo> outputs = {output};
    constexpr Position length = kLength;
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_aggregates[kLoops ? 2 : 1][kBlockWarps][kLanes];

    // ---- a block scans the columns of one column tile
    const Place at = thread_position(blockIdx.x, 0, length);
    Sources from = sources_of(operands, at, geometry, length, lines, length);
    Outputs<PointerTo> to = outputs;
    for_each_output([&](auto& y) { y += at.item; }, to);
    [[maybe_unused]] const int lane = at.lane, warp = at.warp, place = at.in_tile;
    const int tiles_a_line = kLoops ? (int)((length + kTileItems - 1) / kTileItems) : 1;
    // the prefix of the first tile
    States carry = begin_lines(carry_in + at.line * carry_in_step, at.step * carry_in_step, at.there);
    if (kBlockWarps > 1 && kLoops && threadIdx.x < kLanes) warp_aggregates[0][0][place] = carry;

    // ---- load the first tile
    TileRows rows = load(from, items_in(at.live), at.there);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTileItems;  // scan position of the tile's first row
        Items s = lift_items(rows);

        // ---- prefetch the next tile: its loads are in flight while this one is scanned
        if (tile < tiles_a_line - 1) {
            advance(from);
            rows = load(from, items_in(at.live) - begin - kTileItems, at.there);
        }

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
        each_result(prefix, s, [&](int k, const Results& results) {
            store_row(to, k, results, at.live - begin, at.there);
        });
        end_items(carry_out + at.line, at.step, length - at.scanned - begin, at.there, prefix, s);
        advance(to);
        if constexpr (kExchangesRows) __syncwarp();  // all lanes have read what the next copies overwrite
    }
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(linear_bf16_n2048_inner64_gate_f32_reverse_initial_final_strided_gate_columns,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
