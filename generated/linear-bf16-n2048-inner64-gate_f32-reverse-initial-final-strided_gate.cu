// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate
//          2048 bfloat16 items of stride 64, a float32 gate, reverse, initial, final, strided_gate, float32 out
// plan     columns: threads 512, items 16, tiles 8, columns 32, vector 1, strided_columns False, stages 0, blocks 1
//          the scanned dimension has stride 64: 32 neighbouring columns per block
// numbers  rule: columns
// target   sm_90
// content  sha256 44675b880ef9e0f7 of everything below this banner
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
constexpr Position length = 2048;  // items per line
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 512;  // threads per block
constexpr int kWarps = 16;  // warps per block
constexpr int kInner = 64;  // columns side by side: the stride of the scanned dimension
constexpr int kBlocks = 1;  // least resident blocks per multiprocessor
constexpr int kRun = 16;  // rows per thread and tile
constexpr int kVector = 1;  // columns per thread
constexpr int kLanes = 32;  // threads side by side across a panel
constexpr int kPanels = 2;  // panels across the columns
constexpr bool kRagged = false;  // the last panel has fewer columns
constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
constexpr bool kExchanged = false;  // lanes exchange rows in shared memory
constexpr bool kLoops = true;  // a column has several tiles
static_assert(kThreads % 32 == 0, "blocks of whole warps");

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    float value;
    asm("mov.b32 %0, { %1, %2 };" : "=f"(value) : "h"((unsigned short)0), "h"(bits));
    return value;
}
#endif

// ---- operator linear: y[i] = g[i] * y[i-1] + x[i]
__device__ __forceinline__ bool is_zero(Value x) { return !(x != 0); }

__device__ __forceinline__ State identity() { return {1, 0}; }

__device__ __forceinline__ State lift(Value x, Value g) {
    return {g, x};
}

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = is_zero(older.value) ? newer.value : newer.gate * older.value + newer.value;
    return s;
}

// combine where `newer` is the state of one item.
__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = newer.gate * older.value + newer.value;
    return s;
}

__device__ __forceinline__ State element(Input x, Gate g) {
    return lift(bfloat_to_float(x), g);
}

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

// ---- operands with strides: sizes and strides, in items, of the dimensions that are not scanned
struct Geometry {
    int rank;
    long long size[24];
    // by operand; a step is the stride of the scanned dimension
    long long input_stride[24], input_step;
    long long mask_stride[24], mask_step;
    long long gate_stride[24], gate_step;
    long long starts_stride[24], starts_step;
};

__device__ __forceinline__ long long line_offset(long long line, int rank, const long long* size,
                                                 const long long* stride) {
    long long offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
        const long long rest = line / size[d];  // one division: it takes dozens of instructions
        offset += (line - rest * size[d]) * stride[d];
        line = rest;
    }
    return offset;
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
constexpr bool kSerial = true;  // results follow from each other, row by row
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
    Rows<Gate> g;
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
    Source<Gate> g;
};
struct Outputs {  // the first row of the next tile to store
    Output* y;
};

// Move on to the next tile.
__device__ __forceinline__ void advance(Operands& from) {
    from.x.first += kTile * from.x.step;
    from.g.first += kTile * from.g.step;
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

// Rows that do not exist read an operand's first access instead of none. With a second operand ptxas issues guarded
// loads a few at a time, each with its use: masked 64 x 4096 x 1024 falls to 0.65 of a copy (H200).
constexpr bool kStandsIn = !kStridedColumns && !kRealigns;

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

// An operand with strides of its own.
template <typename Item>
__device__ __forceinline__ Source<Item> placed(const Item* begin, const Place& at, const Geometry& geometry,
                                               const long long* stride, long long step, Position length,
                                               long long lines) {
    const Item* const last = begin + line_offset(lines - 1, geometry.rank, geometry.size, stride) + (length - 1) * step;
    const Item* const line = begin + line_offset(at.line, geometry.rank, geometry.size, stride);
    return {line + memory_index(at.first, 1, length) * step, kReverse ? -step : step, begin, last + 1};
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

// The items at a misaligned address span two accesses, the second of which is the next lane's first.
template <typename Item>
__device__ __forceinline__ Access<Item> read_misaligned(const Item* from) {
    const int skew = skew_of<sizeof(Access<Item>)>(from);
    const Access<Item>* const access = reinterpret_cast<const Access<Item>*>(from - skew);
    return realign<kVector>(access[0], access[1], skew);
}

template <bool uneven = kUneven, typename Item>
__device__ __forceinline__ Rows<Item> load_rows(const Source<Item>& x, Position live, int there) {
    constexpr bool stands_in = kStandsIn && (kRagged || uneven);
    Rows<Item> rows = {};
    const Item* from = x.first;
    const Item* const last = from + (kRun - 1) * x.step;
    const Item *const lowest = kReverse ? last : from, *const highest = kReverse ? from : last;
    const bool inside = lowest >= x.begin + kVector - 1 && highest + 2 * kVector <= x.end;  // all items of its accesses
    if (kRealigns && is_live<uneven>(live, kRun - 1) && inside) {
#pragma unroll
        for (int k = 0; k < kRun; ++k, from += x.step) rows.row[k] = read_misaligned(from);
        return rows;
    }
#pragma unroll
    for (int k = 0; k < kRun; ++k, from += x.step) {
        if constexpr (kStridedColumns || kRealigns) {
#pragma unroll
            for (int c = 0; c < kVector; ++c)
                if (is_live<uneven>(live, k) && (!kStridedColumns || !kRagged || there > c))
                    rows.row[k].column[c] = from[c * kSpacing];
        } else if (stands_in || is_live<uneven>(live, k)) {
            rows.row[k] = *reinterpret_cast<const Access<Item>*>(is_live<uneven>(live, k) ? from : x.begin);
        }
    }
    return rows;
}

__device__ __forceinline__ TileRows load(const Operands& from, Position live, int there) {
    return {load_rows(from.x, live, there), load_rows(from.g, live, there)};
}
// The operator's functions, column by column; its conditions hold where they hold for every column.
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
    for (int k = 0; k < kRun; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c)
            s.item[k].column[c] = element(rows.x.row[k].column[c], rows.g.row[k].column[c]);
    return s;
}

// The total of consecutive items.
__device__ __forceinline__ States scan_items(const Items& s) {
    States total = append(identities(), s.item[0]);
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        total = append(total, s.item[k]);
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
        last = append(last, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

// The state after the first `count` items, of which there is one at least.
__device__ __forceinline__ States state_after(int count, const States& prefix, const Items& s) {
    States last = prefix, after = prefix;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        last = append(last, s.item[k]);
        if (count == k + 1) after = last;
    }
    return after;
}

// Store the carry-out if these rows hold the lines' last one: `rest` rows remain from the first of these; `there`: how
// many lines exist; `step`: items from the carry-out of a line to that of the next.
__device__ __forceinline__ void end_items(Carry* carry_out, long long step, Position rest, int there,
                                          const States& prefix, const Items& s) {
    if (rest < 1 || rest > kRun) return;
    const States last = state_after((int)rest, prefix, s);
#pragma unroll
    for (int c = 0; c < kVector; ++c)
        if (there > c) carry_out[c * step] = end_line(last.column[c]);
}

// ---- lanes
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.gate, distance, 32),
            __shfl_up_sync(0xffffffffu, s.value, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.gate, source, 32),
            __shfl_sync(0xffffffffu, s.value, source, 32)};
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
linear_bf16_n2048_inner64_gate_f32_reverse_initial_final_strided_gate_columns(
    const Input* input, const Gate* gate, Output* output,
    const __grid_constant__ Geometry geometry, long long lines,
    const Carry* carry_in, long long carry_in_step, Carry* carry_out) {
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_totals[kLoops ? 2 : 1][kWarps][kLanes];

    // ---- a block scans the columns of one panel
    const Place at = place_of(blockIdx.x, 0, length);
    Operands from = {
        dense<false>(input, at, lines * length),
        placed(gate, at, geometry, geometry.gate_stride, geometry.gate_step, length, lines),
    };
    Outputs to = {output + at.item};
    [[maybe_unused]] const int lane = at.lane, warp = at.warp, place = at.in_panel;
    const int tiles_a_line = kLoops ? (int)((length + kTile - 1) / kTile) : 1;
    // the prefix of the first tile
    States carry = begin_lines(carry_in + at.line * carry_in_step, at.step * carry_in_step, at.there);
    if (kWarps > 1 && kLoops && threadIdx.x < kLanes) warp_totals[0][0][place] = carry;

    // ---- load the first tile
    TileRows rows = load(from, at.live, at.there);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTile;  // scan position of the tile's first row
        Items s = lift_items(rows);

        // ---- prefetch the next tile: its loads are in flight while this one is scanned
        if (tile < tiles_a_line - 1) {
            advance(from);
            rows = load(from, at.live - begin - kTile, at.there);
        }

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
        end_items(carry_out + at.line, at.step, length - at.scanned - begin, at.there, prefix, s);
        advance(to);
        if constexpr (kExchanged) __syncwarp();  // all lanes have read what the next copies overwrite
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
