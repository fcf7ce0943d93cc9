// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate
//          2048 bfloat16 items of stride 64, a float32 gate, reverse, initial, final, strided_gate, float32 out
// plan     columns: threads 512, items 16, tiles 8, columns 32, vector 1, apart False, stages 0, blocks 1
//          the scanned dimension has stride 64: 32 neighbouring columns per block
// target   sm_90
// content  sha256 ca1c30c63b8496dc of everything below this banner
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
constexpr Position length = 2048;  // of a line, in items
constexpr bool kReverse = true;  // scan from a column's end to its start
constexpr int kInner = 64;  // columns side by side: the stride of the scanned dimension
constexpr int kThreads = 512;  // of a block
constexpr int kBlocks = 1;  // of a multiprocessor, at least
constexpr int kItems = 16;  // rows of a thread in a tile
constexpr int kVector = 1;  // columns of a thread
constexpr int kLanes = 32;  // threads side by side across a panel
constexpr int kPanels = 2;  // side by side across the columns
constexpr bool kApart = false;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start off the boundary of an access
constexpr bool kExchanged = false;  // lanes exchange rows in shared memory
constexpr bool kStandsIn = false;  // rows that do not exist read the operand's first access
constexpr bool kLoops = true;  // a column has several tiles
static_assert(kThreads % 32 == 0, "blocks of whole warps");

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

#endif

// ---- operator linear: y[i] = g[i] * y[i-1] + x[i]
__device__ __forceinline__ bool is_zero(Value x) { return x == 0; }

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
    return lift(bfloat_to_float(x), (float)(g));
}

__device__ __forceinline__ Output output_of(State state) { return state.value; }

// Carry-in: the state of a result that is carried in.
__device__ __forceinline__ State begin_line(const Carry* carry_in) {
    const Value x = *carry_in;
    return {1, x};
}

// Carry-out: the result of the whole line.
__device__ __forceinline__ Carry end_line(State state) {
    return state.value;
}

// ---- a panel: kColumns columns, of which a thread takes kVector; its rows in tiles of kTile
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = kLanes * kVector;
constexpr int kSlots = kThreads / kLanes;  // threads along a column
constexpr int kTile = kSlots * kItems;
constexpr bool kRagged = (long long)kPanels * kColumns != kInner;  // the last panel reaches past the last column
constexpr bool kUneven = length % kTile != 0;  // the last tile is partial
constexpr bool kGuarded = kRagged || kUneven;  // some rows of a tile do not exist
constexpr long long kStep = kReverse ? -kInner : kInner;  // items from one row to the next in scan order
constexpr int kPitch = kApart ? 1 : kVector;              // columns from one thread to the next
constexpr int kSpacing = kApart ? kLanes : 1;             // columns between those of a thread
constexpr int kStride = kExchanged ? 32 / kLanes : 1;     // rows from one access of a thread to its next
static_assert(kThreads % 32 == 0 && 32 % kLanes == 0 && kThreads % kLanes == 0, "whole warps, whole rows");

// ---- rows of neighbouring columns
// The largest power of two that divides a number of bytes, at most the 16 bytes of the widest access.
__device__ __forceinline__ constexpr int alignment_of(int bytes) { return (bytes & -bytes) < 16 ? bytes & -bytes : 16; }

template <typename Item>
struct alignas(alignment_of(kVector * sizeof(Item))) Access {  // a thread's columns of one row, as one access
    Item column[kVector];
};
template <typename Item>
struct Rows {
    Access<Item> row[kItems];
};
struct alignas(alignment_of(kVector * sizeof(State))) States {  // one per column
    State column[kVector];
};
struct Items {
    States row[kItems];
};

// Index in memory of the lowest of `count` positions of a line, from a scan position on.
__device__ __forceinline__ Position index_of(Position position, int count, Position length) {
    return kReverse ? length - count - position : position;
}

__device__ __forceinline__ States identities() {
    States s;
#pragma unroll
    for (int c = 0; c < kVector; ++c) s.column[c] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
#pragma unroll
    for (int c = 0; c < kVector; ++c) s.column[c] = combine(older.column[c], newer.column[c]);
    return s;
}

// The carry-in of the thread's lines, of which `there` exist; `step`: items from that of a line to that of the next.
__device__ __forceinline__ States begin_lines(const Carry* carry_in, long long step, int there) {
    States s = identities();
#pragma unroll
    for (int c = 0; c < kVector; ++c)
        if (there > c) s.column[c] = begin_line(carry_in + c * step);
    return s;
}

template <typename Item>
struct Source {  // an operand, as a thread reads it
    const Item* first;  // the thread's first row of the next tile to read
    long long step;     // items from one row to the next in scan order
    const Item* begin;  // the operand's first item
};

// Whether row k of a thread exists; `live`: rows from its first to the end of its columns.
__device__ __forceinline__ bool is_live(Position live, int k) { return !kGuarded || live > k; }

template <typename Item>
__device__ __forceinline__ Rows<Item> load_rows(const Source<Item>& x, Position live, int there) {
    Rows<Item> rows = {};
    const Item* from = x.first;
#pragma unroll
    for (int k = 0; k < kItems; ++k, from += x.step) {
        if constexpr (kApart || kRealigns) {
#pragma unroll
            for (int c = 0; c < kVector; ++c)
                if (is_live(live, k) && (!kApart || !kRagged || there > c)) rows.row[k].column[c] = from[c * kSpacing];
        } else if constexpr (kStandsIn) {
            // the operand's first access, for rows that do not exist: ptxas issues unconditional loads together
            rows.row[k] = *reinterpret_cast<const Access<Item>*>(is_live(live, k) ? from : x.begin);
        } else {
            if (is_live(live, k)) rows.row[k] = *reinterpret_cast<const Access<Item>*>(from);
        }
    }
    return rows;
}

template <typename Item>
__device__ __forceinline__ void store_rows(Item* to, const Rows<Item>& y, Position live, int there) {
#pragma unroll
    for (int k = 0; k < kItems; ++k, to += kStride * kStep) {
        if (!is_live(live, k * kStride)) continue;
        if (kApart || (kRealigns && (size_t)to % alignof(Access<Item>) != 0)) {
#pragma unroll
            for (int c = 0; c < kVector; ++c)
                if (!kApart || !kRagged || there > c) to[c * kSpacing] = y.row[k].column[c];
        } else {
            *reinterpret_cast<Access<Item>*>(to) = y.row[k];
        }
    }
}

__device__ __forceinline__ Items lift_items(const Rows<Input>& x, const Rows<Gate>& g) {
    Items s;
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c)
            s.row[k].column[c] = element(x.row[k].column[c], g.row[k].column[c]);
    return s;
}

// The total of the rows, per column.
__device__ __forceinline__ States scan_items(const Items& s) {
    States total = identities();
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c)
            total.column[c] = append(total.column[c], s.row[k].column[c]);
    return total;
}

// Results of the rows, given the states before them.
__device__ __forceinline__ Rows<Output> output_rows(States prefix, const Items& s) {
    Rows<Output> y;
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
            State& before = prefix.column[c];
            const State own = s.row[k].column[c];
            before = append(before, own);
            y.row[k].column[c] = output_of(before);
        }
    return y;
}

// Store the carry-out if these rows hold the lines' last one: `rest` rows remain from the first of these; `there`: how
// many lines exist; `step`: items from the carry-out of a line to that of the next.
__device__ __forceinline__ void end_items(Carry* carry_out, long long step, Position rest, int there, States prefix,
                                          const Items& s) {
    if (rest < 1 || rest > kItems) return;
    States last = prefix;
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
            prefix.column[c] = append(prefix.column[c], s.row[k].column[c]);
            if (rest == k + 1) last.column[c] = prefix.column[c];
        }
#pragma unroll
    for (int c = 0; c < kVector; ++c)
        if (there > c) carry_out[c * step] = end_line(last.column[c]);
}

// ---- operands with strides: sizes and strides, in items, of the dimensions that are not scanned
struct Geometry {
    int rank;
    long long size[24];
    long long input_stride[24];
    long long mask_stride[24];
    long long gate_stride[24];
    long long starts_stride[24];
    long long input_step;  // stride of the scanned dimension
    long long mask_step;
    long long gate_step;
    long long starts_step;
};

__device__ __forceinline__ long long line_offset(long long line, int rank, const long long* size,
                                                 const long long* stride) {
    long long offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
        offset += line % size[d] * stride[d];
        line /= size[d];
    }
    return offset;
}

__global__ void __launch_bounds__(kThreads, kBlocks)
scan_kernel(const Input* input, const Gate* gate, Output* output,
            const __grid_constant__ Geometry geometry,
            const Carry* carry_in, long long carry_in_step, Carry* carry_out) {
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_totals[kLoops ? 2 : 1][kWarps][kLanes];

    // ---- a block scans the columns of one panel
    [[maybe_unused]] const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int place = threadIdx.x % kLanes;  // of this thread's columns in the panel
    const long long outer = blockIdx.x / kPanels;
    const long long column = blockIdx.x % kPanels * (long long)kColumns + place * kPitch;
    const int left = kRagged ? (int)min(kInner - column, (long long)kColumns) : kColumns;  // columns from this one on
    const int there = kApart ? (left + kSpacing - 1) / kSpacing : left > 0 ? kVector : 0;  // of this thread
    [[maybe_unused]] const long long line = outer * kInner + column;
    const Position first = 0 + threadIdx.x / kLanes * kItems;  // scan position of the first row it scans
    const Position live = there > 0 ? length - first : 0;  // rows from there to the end of its columns
    Source<Input> x = {
        input + (outer * length + index_of(first, 1, length)) * kInner + column,
        kStep, input};
    Source<Gate> g = {
        gate + line_offset(line, geometry.rank, geometry.size, geometry.gate_stride) +
            index_of(first, 1, length) * geometry.gate_step,
        kReverse ? -geometry.gate_step : geometry.gate_step,
        gate};
    Output* y = output + (outer * length + index_of(first, 1, length)) * kInner + column;
    const int tiles_a_line = kLoops ? (int)((length + kTile - 1) / kTile) : 1;
    States carry = begin_lines(carry_in + line * carry_in_step, kSpacing * carry_in_step, there);  // the prefix of the first tile
    if (kLoops && threadIdx.x < kLanes) warp_totals[0][0][place] = carry;

    // ---- load the first tile
    Rows<Input> x_rows = load_rows(x, live, there);
    Rows<Gate> g_rows = load_rows(g, live, there);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTile;  // scan position of the tile's first row
        Items s = lift_items(x_rows, g_rows);

        // ---- prefetch the next tile: its loads are in flight while this one is scanned
        if (tile < tiles_a_line - 1) {
            x.first += kTile * x.step;
            x_rows = load_rows(x, live - begin - kTile, there);
            g.first += kTile * g.step;
            g_rows = load_rows(g, live - begin - kTile, there);
        }

        // ---- scan the rows of the thread
        const States inclusive = scan_items(s);

        // ---- combine the totals of the warps before this one, in order
        auto& totals = warp_totals[tile % 2];
        if (warp < kWarps - 1) totals[warp + 1][place] = inclusive;
        __syncthreads();
        States prefix = kLoops ? totals[0][place] : carry;
#pragma unroll 1  // fewer instructions than a select or a branch for each of the warps
        for (int w = 1; w <= warp; ++w) prefix = combine_each(prefix, totals[w][place]);
        if (kLoops && warp == kWarps - 1)  // the prefix of the next tile
            warp_totals[(tile + 1) % 2][0][place] = combine_each(prefix, inclusive);

        // ---- store
        store_rows(y, output_rows(prefix, s), live - begin, there);
        end_items(carry_out + line, kSpacing, live - begin, there, prefix, s);
        y += kTile * kStep;
    }
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    const void* gate;
    const void* starts;  // head flags of segments
    void* output;
    void* indices;
    const void* carry_in;
    void* carry_out;
    const void* offsets;  // where segments begin
    void* workspace;
    long long carry_in_step;  // items from the carry-in of a line to that of the next
    long long segments;
    long long lines;   // scanned sequences
    long long length;  // items in a line, for kernels that take it
    int multiprocessors;
    Geometry geometry;
};

extern "C" int scanops_abi() { return 3; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

extern "C" long long scanops_workspace_bytes(long long, long long) { return 0; }

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = arguments->lines / kInner * kPanels;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(kThreads);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Gate*)arguments->gate, (Output*)arguments->output, arguments->geometry,
                                     (const Carry*)arguments->carry_in, arguments->carry_in_step, (Carry*)arguments->carry_out));
}
#endif
