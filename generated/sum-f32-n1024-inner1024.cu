// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n1024-inner1024
//          1024 float32 items of stride 1024, float32 out
// plan     columns: threads 512, items 8, tiles 2, columns 32, vector 4, strided_columns False, stages 2, blocks 1
//          the scanned dimension has stride 1024: 32 neighbouring columns per block
// numbers  measured: columns staged, rows up to 1024, any GPU
//          tuned: threads, items, columns, vector, strided_columns, stages, blocks; the others follow from the spec
// target   sm_90
// content  sha256 37d1c5a187c33b8f of everything below this banner
// again    scanops generate sum-f32-n1024-inner1024 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32

typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: columns
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr int kWarpThreads = 32;
constexpr unsigned kFullMask = 0xffffffffu;  // all threads of a warp
constexpr int kLength = 1024;  // items per line
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kBlockThreads = 512;  // threads per block
constexpr int kBlockWarps = 16;  // warps per block
constexpr int kBlocksPerSm = 1;  // least resident blocks per multiprocessor
constexpr int kRunItems = 8;  // rows per thread and tile
constexpr int kThreadColumns = 4;  // columns per thread
constexpr int kLanes = 8;  // threads side by side across a column tile
constexpr int kColumnTiles = 32;  // column tiles across the columns
constexpr bool kPartialColumns = false;  // the last tile has fewer columns
constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
constexpr bool kExchangesRows = false;  // lanes exchange rows in shared memory
constexpr int kStages = 2;  // tiles in the ring in shared memory
constexpr bool kLoops = true;  // a column has several tiles
constexpr bool kZeroFills = false;  // items that do not exist are 0
constexpr bool kExclusive = false;  // a result is the prefix before its item
constexpr bool kComplete = false;  // a line has one result more than items
constexpr bool kUneven = false;  // the last tile of a line is partial
constexpr bool kSerial = false;  // each result is computed from the one before it
constexpr int kInner = 1024;  // columns side by side: the stride of the scanned dimension
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

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }
__device__ __forceinline__ State lift(Value x) { return x; }
__device__ __forceinline__ State combine(State older, State newer) { return older + newer; }
__device__ __forceinline__ State element(Input x) { return lift(x); }
__device__ __forceinline__ Output output_of(State state) { return state; }

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// The items of a line, of which a complete scan has one less than results.
__device__ __forceinline__ constexpr Position items_in(Position length) { return length - kComplete; }

// What is not read is 0 in registers. In shared memory it stays, unless all items of a thread decide by which
// instructions it computes, and so the bits of its results.
template <class Slot>
__device__ __forceinline__ void leave_out([[maybe_unused]] Slot& slot) {
    if constexpr (kZeroFills) slot = {};
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

// ---- tiles in shared memory
// Accesses of a stage of the ring, by row and thread: a thread reads what it copied, so no barrier is needed.
template <typename Item>
constexpr int kStage = kRunItems * kBlockThreads;

template <typename Item>
__device__ __forceinline__ int copied_place(int k) {
    return k * kBlockThreads + (int)threadIdx.x;
}

template <typename Item>
__device__ __forceinline__ int scanned_place(int k) {
    return copied_place<Item>(k);
}

template <class Item>
using RingStages = Access<Item>[kStages][kStage<Item>];

typedef Operands<RingStages> Ring;  // multistage ring of tiles

// Copy a thread's rows of a tile, one access each.
template <bool uneven = kUneven, typename Item>
__device__ __forceinline__ void copy_rows(Access<Item>* stage, const Source<Item>& x, Position live) {
    const Item* from = x.first;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k, from += kStride * x.step) {
        Access<Item>* const to = stage + copied_place<Item>(k);
        // Full accesses bypass L1: 256 x 1024 x 1024 has 0.974 of a copy this way and 0.829 through L1. Where lanes
        // exchange rows, neighbours share cache lines: 4096 x 4096 x 16 has 0.90 through L1 and 0.85 past it (H200).
        if (is_live<uneven>(live, k * kStride))
            copy_async<!kExchangesRows>(to, from);
        else
            leave_out(*to);
    }
}

// Copy this lane's part of a tile of all operands.
__device__ __forceinline__ void copy(Ring& ring, int stage, const Sources& from, Position live) {
    for_each_operand([&](auto layout, auto& slots,
                         auto& x) { copy_rows<(kUneven || layout.kShift > 0)>(slots[stage], x, live - layout.kShift); },
                     ring, from);
}

// The rows that a thread scans of a tile that arrived.
template <typename Item>
__device__ __forceinline__ Rows<Item> staged_rows(const Access<Item>* stage) {
    Rows<Item> rows;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) rows.row[k] = stage[scanned_place<Item>(k)];
    return rows;
}

// This thread's rows of a tile that arrived.
__device__ __forceinline__ TileRows staged(const Ring& ring, int stage, const Sources&) {
    TileRows rows;
    for_each_operand([&](auto, auto& to, auto& slots) { to = staged_rows(slots[stage]); }, rows, ring);
    return rows;
}

// ---- the operator's functions, column by column; its conditions hold where they hold for every column
__device__ __forceinline__ States combine(const States& older, const States& newer) {
    return each_column([&](int c) { return combine(older.column[c], newer.column[c]); });
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

// The total of a thread's consecutive items; leaves their inclusive scan in place.
__device__ __forceinline__ ThreadState scan_items(Items& s) {
    ThreadState total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) total = s.item[k] = combine(total, s.item[k]);
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
sum_f32_n1024_inner1024_columns(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines) {
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Geometry geometry = {};
    constexpr Position length = kLength;
    dynamic_shared(Ring, ring);
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
    States carry = identities();
    if (kBlockWarps > 1 && kLoops && threadIdx.x < kLanes) warp_aggregates[0][0][place] = carry;

    // ---- prologue: issue the copies of the first tiles
    const auto copy_tile = [&](int tile) {
        if (tile < tiles_a_line) {
            copy(ring, tile % kStages, from, items_in(at.live) - (Position)tile * kTileItems);
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
        each_result(prefix, s, [&](int k, const Results& results) {
            store_row(to, k, results, at.live - begin, at.there);
        });
        advance(to);
        if constexpr (kExchangesRows) __syncwarp();  // all lanes have read what the next copies overwrite
    }
}

static_assert((sizeof(Ring) + 15) / 16 * 16 == 131072, "shared memory as planned");

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    cudaError_t error =
        cudaFuncSetAttribute(sum_f32_n1024_inner1024_columns,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(sum_f32_n1024_inner1024_columns,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
