// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n1024-inner1024
//          1024 float32 items of stride 1024, float32 out
// plan     columns: threads 512, items 8, tiles 2, columns 32, vector 4, strided_columns False, stages 2, blocks 1
//          the scanned dimension has stride 1024: 32 neighbouring columns per block
// numbers  rule: columns
// target   sm_90
// content  sha256 3a7eb67a7dee81a9 of everything below this banner
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
constexpr Position length = 1024;  // items per line
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kThreads = 512;  // threads per block
constexpr int kWarps = 16;  // warps per block
constexpr int kInner = 1024;  // columns side by side: the stride of the scanned dimension
constexpr int kBlocks = 1;  // least resident blocks per multiprocessor
constexpr int kRun = 8;  // rows per thread and tile
constexpr int kVector = 4;  // columns per thread
constexpr int kLanes = 8;  // threads side by side across a panel
constexpr int kPanels = 32;  // panels across the columns
constexpr bool kRagged = false;  // the last panel has fewer columns
constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
constexpr bool kExchanged = false;  // lanes exchange rows in shared memory
constexpr int kStages = 2;  // tiles in the ring in shared memory
constexpr bool kLoops = true;  // a column has several tiles
constexpr bool kClears = false;  // items that do not exist are 0
static_assert(kThreads % 32 == 0, "blocks of whole warps");

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                                      \
    extern __shared__ __align__(16) unsigned char name##_bytes[];         \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)

// Asynchronous global-to-shared copy of 4, 8 or 16 bytes (cp.async), 16 with L1 bypass (cp.async.cg) if so asked.
// Fewer bytes pass through a register.
template <bool bypasses = false, class Item>
__device__ __forceinline__ void copy_async(Item* shared, const void* global) {
    [[maybe_unused]] const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    if constexpr (sizeof(Item) < 4)
        *shared = *static_cast<const Item*>(global);
    else if constexpr (bypasses && sizeof(Item) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(global), "n"(sizeof(Item)) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) {
    return lift(x);
}

__device__ __forceinline__ Output output_of(State state) { return state; }

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// What is not read is 0 in registers. In shared memory it stays, unless all items of a thread decide by which
// instructions it computes, and so the bits of its results.
template <class Slot>
__device__ __forceinline__ void leave_out([[maybe_unused]] Slot& slot) {
    if constexpr (kClears) slot = {};
}

// ---- a panel: kColumns columns, of which a thread takes kVector; its rows in tiles of kTile
constexpr int kColumns = kLanes * kVector;
constexpr int kTile = kThreads / kLanes * kRun;
constexpr int kWarpRows = 32 / kLanes * kRun;             // rows in a warp's part of a tile
constexpr long long kStep = kReverse ? -kInner : kInner;  // items from one row to the next in scan order
constexpr int kPitch = kStridedColumns ? 1 : kVector;              // columns from one thread to the next
constexpr int kSpacing = kStridedColumns ? kLanes : 1;             // columns between those of a thread
constexpr int kStride = kExchanged ? 32 / kLanes : 1;     // rows from one access of a thread to its next
static_assert(32 % kLanes == 0, "whole rows of a panel");

// ---- rows of neighbouring columns
constexpr bool kSerial = false;  // results follow from each other, row by row
constexpr bool kUneven = length % kTile != 0;  // the last tile is partial

// The largest power of two that divides a number of bytes, at most the 16 bytes of the widest access.
__device__ __forceinline__ constexpr int alignment_of(int bytes) { return (bytes & -bytes) < 16 ? bytes & -bytes : 16; }

template <typename Item, int count = kVector>
struct alignas(alignment_of(count * sizeof(Item))) Access {  // one access: a thread's columns of a row
    Item column[count];
};
template <typename Item>
struct Rows {
    Access<Item> row[kRun];
};
struct TileRows {  // a thread's rows of a tile, of every operand with an item per row
    Rows<Input> x;
};
struct Results {  // of a thread's columns in one row
    Access<Output> y;
};
typedef Access<State> States;  // one per column
struct Items {
    States item[kRun];
};

// The states that a function gives for each column.
template <typename Of>
__device__ __forceinline__ States each_column(Of of) {
    States s;
#pragma unroll
    for (int c = 0; c < kVector; ++c) s.column[c] = of(c);
    return s;
}

__device__ __forceinline__ States identities() {
    return each_column([](int) { return identity(); });
}

struct Place {  // a thread's columns, and its rows of a tile
    int lane, warp;
    int in_panel;      // index of the thread's columns in the panel
    int there;         // column c of the thread exists if it is less than this
    long long line;    // number of the first one's line
    long long step;    // from the number of a line to that of the thread's next
    long long item;    // index of its first row in a dense operand
    Position first;    // scan position of the first row that it accesses
    Position scanned;  // and of the first one that it scans, another one where lanes exchange rows
    Position live;     // rows from `first` to the end of its columns
};

// How many of a thread's columns exist, at least; `left`: columns from its first one to the end of the panel.
__device__ __forceinline__ int columns_of(int left) { return (left + kSpacing - 1) / kSpacing; }

// Whether row k of a thread exists; `live`: rows from its first to the end of its columns.
template <bool uneven = kUneven>
__device__ __forceinline__ bool is_live(Position live, int k) {
    return uneven ? live > k : !kRagged || live > 0;
}

template <typename Item>
struct Source {  // an operand, as a thread reads it
    const Item* first;    // the first row of the next tile to read, of the thread, or of a warp that copies it together
    long long step;       // items from one row to the next in scan order
    const Item* begin;    // the operand's first item
    const Item* end;
    long long pitch = 0;  // of transposed operands: from one run of contiguous items to the next
};

struct Operands {
    Source<Input> x;
};
struct Outputs {  // the first row of the next tile to store
    Output* y;
};

// Move on to the next tile.
__device__ __forceinline__ void advance(Operands& from) {
    from.x.first += kTile * from.x.step;
}

__device__ __forceinline__ void advance(Outputs& to) {
    to.y += kTile * kStep;
}

template <typename Item>
__device__ __forceinline__ void store_access(Item* to, const Access<Item>& y, int there) {
    if (kStridedColumns || (kRealigns && (size_t)to % alignof(Access<Item>) != 0)) {
#pragma unroll
        for (int c = 0; c < kVector; ++c)
            if (!kStridedColumns || !kRagged || there > c) to[c * kSpacing] = y.column[c];
    } else {
        *reinterpret_cast<Access<Item>*>(to) = y;
    }
}

// Store the results of the k-th row that a thread accesses, if it exists.
__device__ __forceinline__ void store_row(const Outputs& to, int k, const Results& results, Position live, int there) {
    if (!is_live(live, k * kStride)) return;
    const long long further = k * kStride * kStep;  // items
    store_access(to.y + further, results.y, there);
}

// The place of a thread in a panel, for the tile that begins at a scan position.
__device__ __forceinline__ Place place_of(unsigned panel, Position begin, Position length) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, in_panel = threadIdx.x % kLanes;
    const long long outer = panel / kPanels;
    const long long column = panel % kPanels * (long long)kColumns + in_panel * kPitch;
    const int there = columns_of(kRagged ? (int)min(kInner - column, (long long)kColumns) : kColumns);
    const Position scanned = begin + (int)threadIdx.x / kLanes * kRun;
    const Position first = kExchanged ? begin + warp * kWarpRows + lane / kLanes : scanned;
    const long long line = outer * kInner + column;
    const long long item = (outer * length + memory_index(first, 1, length)) * kInner + column;
    return {lane, warp, in_panel, there, line, kSpacing, item, first, scanned, there > 0 ? length - first : 0};
}

// A dense operand of so many items. flat: a warp's rows are contiguous; `first` is the lowest item in memory of these.
template <bool flat, typename Item>
__device__ __forceinline__ Source<Item> dense(const Item* begin, const Place& at, long long items) {
    const int row = kReverse ? kWarpRows - 1 - at.lane / kLanes : at.lane / kLanes;
    const Item* const own = begin + at.item;
    return {flat ? own - at.in_panel * kVector - row * (long long)kInner : own, kStep, begin, begin + items};
}

// The items from `skew` on of two accesses, adjacent in memory, of so many items each: shifted by 32-bit words, then
// within them. Where lines are scanned in reverse, `skew` may be a whole access.
template <int items, class Aligned>
__device__ __forceinline__ Aligned realign(const Aligned& lower, const Aligned& upper, int skew) {
    const Aligned both[2] = {lower, upper};
    constexpr int bytes = sizeof(Aligned), words = (bytes + 3) / 4, item_bytes = bytes / items;
    const int shift = 8 * item_bytes * skew;  // bits
    unsigned word[2 * words + 1] = {};
    memcpy(word, both, sizeof(both));
#pragma unroll
    for (int distance = kReverse ? words : words / 2; distance > 0; distance /= 2)
        if (shift & 32 * distance)
#pragma unroll
            for (int w = 0; w + distance < 2 * words; ++w) word[w] = word[w + distance];
#pragma unroll
    for (int w = 0; w < words; ++w)
        if (item_bytes < 4) word[w] = __funnelshift_r(word[w], word[w + 1], shift);
    Aligned result;
    memcpy(&result, word, bytes);
    return result;
}

// Items by which an address lies after the boundary of so many bytes.
template <int bytes, typename Item>
__device__ __forceinline__ int skew_of(const Item* address) {
    return (int)((size_t)address / sizeof(Item)) & (int)(bytes / sizeof(Item) - 1);
}

// ---- tiles in shared memory
// Accesses of a stage of the ring, by row and thread: a thread reads what it copied, so no barrier is needed.
template <typename Item>
constexpr int kStage = kRun * kThreads;

template <typename Item>
__device__ __forceinline__ int copied_place(int k) {
    return k * kThreads + (int)threadIdx.x;
}

struct Ring {  // multistage ring of tiles
    Access<Input> x[kStages][kStage<Input>];
};

// Copy a thread's rows of a tile, one access each.
template <bool uneven = kUneven, typename Item>
__device__ __forceinline__ void copy_rows(Access<Item>* stage, const Source<Item>& x, Position live) {
    const Item* from = x.first;
#pragma unroll
    for (int k = 0; k < kRun; ++k, from += kStride * x.step) {
        Access<Item>* const to = stage + copied_place<Item>(k);
        // Full accesses bypass L1: 256 x 1024 x 1024 has 0.974 of a copy this way and 0.829 through L1. Where lanes
        // exchange rows, neighbours share cache lines: 4096 x 4096 x 16 has 0.90 through L1 and 0.85 past it (H200).
        if (is_live<uneven>(live, k * kStride))
            copy_async<!kExchanged>(to, from);
        else
            leave_out(*to);
    }
}

// The rows that a thread scans of a tile that arrived; x: the operand, any tiles further.
template <typename Item>
__device__ __forceinline__ Rows<Item> staged_rows(const Access<Item>* stage, const Source<Item>& x) {
    const int skew = kRealigns ? skew_of<16>(x.first) : 0;  // the same in all tiles
    Rows<Item> rows;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        const Access<Item>* const from = stage + copied_place<Item>(k) + skew / kVector;
        rows.row[k] = kRealigns ? realign<kVector>(from[0], from[1], skew % kVector) : from[0];
    }
    return rows;
}

__device__ __forceinline__ void copy(Ring& ring, int stage, const Operands& from, Position live) {
    copy_rows(ring.x[stage], from.x, live);
}

__device__ __forceinline__ TileRows staged(const Ring& ring, int stage, const Operands& from) {
    return {staged_rows(ring.x[stage], from.x)};
}
// The operator's functions, column by column; its conditions hold where they hold for every column.
__device__ __forceinline__ States combine(const States& older, const States& newer) {
    return each_column([&](int c) { return combine(older.column[c], newer.column[c]); });
}

// ---- the items of a thread
// The states of a tile's rows.
__device__ __forceinline__ Items lift_items(const TileRows& rows) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRun; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c)
            s.item[k].column[c] = element(rows.x.row[k].column[c]);
    return s;
}

// The total of consecutive items; leaves their inclusive scan in place.
__device__ __forceinline__ States scan_items(Items& s) {
    States total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        total = s.item[k] = combine(total, s.item[k]);
    }
    return total;
}

// The results of a row, by the states of its columns.
__device__ __forceinline__ Results result_of(const States& states) {
    Results results;
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
        results.y.column[c] = output_of(states.column[c]);
    }
    return results;
}

constexpr bool kExclusive = false;  // a result is the prefix before its item

// Call use(k, result) for each item, in order, given the prefix before the items.
template <class Use>
__device__ __forceinline__ void each_result(const States& prefix, const Items& s, Use use) {
    States last = prefix;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = combine(prefix, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

// ---- lanes
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
}

__device__ __forceinline__ States shuffle_up(const States& s, int distance) {
    return each_column([&](int c) { return shuffle_up(s.column[c], distance); });
}

constexpr int kSlots = 32 / kLanes;  // threads of a warp along the same columns

// The states of the warp's last slot.
__device__ __forceinline__ States of_last_slot(const States& s) {
    const int source = 32 - kLanes + threadIdx.x % kLanes;
    return kSlots == 1 ? s : each_column([&](int c) { return shuffle(s.column[c], source); });
}

// Inclusive scan across the lanes of a warp that are a multiple of `first` apart.
template <int first, class Of>
__device__ __forceinline__ Of scan_lanes(Of s, int lane) {
#pragma unroll
    for (int distance = first; distance < 32; distance *= 2) {
        const Of older = shuffle_up(s, distance);
        if (lane >= distance) s = combine(older, s);
    }
    return s;
}

// The exclusive prefix of a slot in its warp, from the inclusive ones.
__device__ __forceinline__ States slots_before(const States& inclusive, int lane) {
    const States older = kSlots > 1 ? shuffle_up(inclusive, kLanes) : inclusive;
    return kSlots > 1 && lane >= kLanes ? older : identities();
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
sum_f32_n1024_inner1024_columns(
    const Input* input, Output* output, long long lines) {
    dynamic_shared(Ring, ring);
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_totals[kLoops ? 2 : 1][kWarps][kLanes];

    // ---- a block scans the columns of one panel
    const Place at = place_of(blockIdx.x, 0, length);
    Operands from = {
        dense<false>(input, at, lines * length),
    };
    Outputs to = {output + at.item};
    [[maybe_unused]] const int lane = at.lane, warp = at.warp, place = at.in_panel;
    const int tiles_a_line = kLoops ? (int)((length + kTile - 1) / kTile) : 1;
    // the prefix of the first tile
    States carry = identities();
    if (kWarps > 1 && kLoops && threadIdx.x < kLanes) warp_totals[0][0][place] = carry;

    // ---- prologue: issue the copies of the first tiles
    const auto copy_tile = [&](int tile) {
        if (tile < tiles_a_line) {
            copy(ring, tile % kStages, from, at.live - (Position)tile * kTile);
            advance(from);
        }
        copy_async_commit();
    };
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) copy_tile(tile);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTile;  // scan position of the tile's first row
        copy_tile(tile + kStages - 1);
        copy_async_wait<kStages - 1>();
        if constexpr (kExchanged) __syncwarp();
        Items s = lift_items(staged(ring, tile % kStages, from));

        // ---- scan the rows of the thread, then across the slots of the warp
        const States inclusive = scan_lanes<kLanes>(scan_items(s), lane);
        const States inside = slots_before(inclusive, lane);
        const bool last_slot = lane >= 32 - kLanes;

        // ---- combine the totals of the warps before this one, in order
        States prefix = carry;
        if constexpr (kWarps > 1) {
            auto& totals = warp_totals[tile % 2];
            if (last_slot && warp < kWarps - 1) totals[warp + 1][place] = inclusive;
            __syncthreads();
            if constexpr (kLoops) prefix = totals[0][place];
            if constexpr (kSerial) {
#pragma unroll 1  // fewer instructions than a select or a branch for each of the warps
                for (int w = 1; w <= warp; ++w) prefix = combine(prefix, totals[w][place]);
            } else {
#pragma unroll
                for (int w = 1; w < kWarps; ++w)
                    if (w <= warp) prefix = combine(prefix, totals[w][place]);
            }
            if (kLoops && last_slot && warp == kWarps - 1)  // the prefix of the next tile
                warp_totals[(tile + 1) % 2][0][place] = combine(prefix, inclusive);
        } else {
            carry = combine(carry, of_last_slot(inclusive));
        }
        if constexpr (kSlots > 1) prefix = combine(prefix, inside);

        // ---- store
        each_result(prefix, s, [&](int k, const Results& results) {
            store_row(to, k, results, at.live - begin, at.there);
        });
        advance(to);
        if constexpr (kExchanged) __syncwarp();  // all lanes have read what the next copies overwrite
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
