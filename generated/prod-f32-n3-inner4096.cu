// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n3-inner4096
//          3 float32 items of stride 4096, float32 out
// plan     columns: threads 32, items 3, tiles 1, columns 128, vector 4, apart False, stages 0, blocks 16
//          the scanned dimension has stride 4096: 128 neighbouring columns per block
// target   sm_90
// content  sha256 3e0377993a5d494d of everything below this banner
// again    scanops generate prod-f32-n3-inner4096 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: columns
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 3;  // of a line, in items
constexpr bool kReverse = false;  // scan from a column's end to its start
constexpr int kInner = 4096;  // columns side by side: the stride of the scanned dimension
constexpr int kThreads = 32;  // of a block
constexpr int kBlocks = 16;  // of a multiprocessor, at least
constexpr int kItems = 3;  // rows of a thread in a tile
constexpr int kVector = 4;  // columns of a thread
constexpr int kLanes = 32;  // threads side by side across a panel
constexpr int kPanels = 32;  // side by side across the columns
constexpr bool kApart = false;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start off the boundary of an access
constexpr bool kExchanged = false;  // lanes exchange rows in shared memory
constexpr bool kStandsIn = false;  // rows that do not exist read the operand's first access
constexpr bool kLoops = false;  // a column has several tiles
static_assert(kThreads % 32 == 0, "blocks of whole warps");

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

// Compensation of a product or a sum: the rounding errors of its steps, whose sum a thread's total regains. Infinities
// and NaN carry none; -0 keeps its sign.
__device__ __forceinline__ Value lose(Value lost, Value older, Value newer) { return fma(lost, newer, fma(older, newer, -(older * newer))); }

__device__ __forceinline__ Value regain(Value total, Value lost) {
    return total - total == 0 && total != 0 ? total + lost : total;  // finite and not 0
}

__device__ __forceinline__ State element(Input x) {
    return lift(x);
}

__device__ __forceinline__ Output result(State state) { return state; }

// ---- a panel: kColumns columns, of which a thread takes kVector; its rows in tiles of kTile
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

__device__ __forceinline__ Items lift_items(const Rows<Input>& x) {
    Items s;
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c)
            s.row[k].column[c] = element(x.row[k].column[c]);
    return s;
}

// Inclusive scan of the rows in place; returns their totals, with the compensation added.
__device__ __forceinline__ States scan_items(Items& s) {
    Value lost[kVector] = {};
#pragma unroll
    for (int k = 1; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
            const State older = s.row[k - 1].column[c], newer = s.row[k].column[c];
            lost[c] = lose(lost[c], older, newer);
            s.row[k].column[c] = combine(older, newer);
        }
    States& total = s.row[kItems - 1];
#pragma unroll
    for (int c = 0; c < kVector; ++c) total.column[c] = regain(total.column[c], lost[c]);
    return total;
}

// Results of the rows, given the states before them.
__device__ __forceinline__ Rows<Output> results(States prefix, const Items& s) {
    Rows<Output> y;
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
            State& before = prefix.column[c];
            y.row[k].column[c] = result(combine(before, s.row[k].column[c]));
        }
    return y;
}

__global__ void __launch_bounds__(kThreads, kBlocks)
scan_kernel(const Input* input, Output* output) {

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
    Output* y = output + (outer * length + index_of(first, 1, length)) * kInner + column;
    const int tiles_a_line = kLoops ? (int)((length + kTile - 1) / kTile) : 1;
    States carry = identities();  // the prefix of the first tile

    // ---- load the first tile
    Rows<Input> x_rows = load_rows(x, live, there);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTile;  // scan position of the tile's first row
        Items s = lift_items(x_rows);

        // ---- prefetch the next tile: its loads are in flight while this one is scanned
        if (tile < tiles_a_line - 1) {
            x.first += kTile * x.step;
            x_rows = load_rows(x, live - begin - kTile, there);
        }

        // ---- scan the rows of the thread
        const States inclusive = scan_items(s);
        States prefix = carry;
        carry = combine_each(carry, inclusive);

        // ---- store
        store_rows(y, results(prefix, s), live - begin, there);
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
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
