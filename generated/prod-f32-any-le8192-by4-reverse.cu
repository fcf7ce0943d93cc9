// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-any-le8192-by4-reverse
//          up to 8192, a multiple of 4, float32 items, reverse, float32 out
// plan     block: threads 416, items 4, tiles 1, vectors 5, boundary 0, alone False
//          a row of up to 8192 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 013ef2f61b3e1936 of everything below this banner
// again    scanops generate prod-f32-any-le8192-by4-reverse --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: block
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 416;  // of a block
constexpr int kWarps = 13;  // of a block
constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 4;  // of an access
constexpr int kVectors = 5;  // accesses of a thread
constexpr int kRun = 4;  // consecutive items that a thread scans serially
constexpr int kRuns = 5;  // of a thread
constexpr int kOutItems = 4;  // of a store
constexpr int stripe = 128;  // items of one access of all lanes of a row
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

__device__ __forceinline__ Output output_of(State state) { return state; }

// ---- accesses hold items in memory order, Items hold states in scan order
struct alignas(kItems * sizeof(Input)) InputVector {
    Input item[kItems];
};
static_assert((kItems & (kItems - 1)) == 0 && sizeof(InputVector) <= 16, "an access is one instruction");
struct alignas(kOutItems * sizeof(Output)) OutputVector {
    Output item[kOutItems];
};
struct Items {
    State item[kRun];
};

// Where an access of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }

// Offset in memory to an item so many items further in scan order.
__device__ __forceinline__ constexpr Position along(Position items) { return kReverse ? -items : items; }

// Lowest index in memory of `items` items from a scan position.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// States of consecutive items.
__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRun; ++k)
        s.item[k] = element(x.item[place_of(k, kItems)]);
    return s;
}

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

template <class Item, class Vector>
__device__ __forceinline__ void store_vector(Item* first, const Vector& y) {
    *reinterpret_cast<Vector*>(first) = y;
}

// Inclusive scan of consecutive items in place; returns their total, compensated.
__device__ __forceinline__ State scan_items(Items& s) {
    Value lost = 0;
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        lost = lose(lost, s.item[k - 1], s.item[k]);
        s.item[k] = combine(s.item[k - 1], s.item[k]);
    }
    return s.item[kRun - 1] = regain(s.item[kRun - 1], lost);
}

// Results of consecutive items, given the prefix before them.
__device__ __forceinline__ void make_results(OutputVector& y, State prefix, const Items& s) {
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        y.item[place_of(k, kItems)] = output_of(combine(prefix, s.item[k]));
    }
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, kLanes);
}

// Inclusive scan across the first `count` lanes.
template <int count = kLanes>
__device__ __forceinline__ State scan_lanes(State s, int lane) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const State older = shuffle_up(s, step);
        if (lane >= step) s = combine(older, s);
    }
    return s;
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, kLanes);
}

// The exclusive prefix of this lane's access, given that of the row's accesses; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane, int last = kLanes - 1) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, last));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

__global__ void __launch_bounds__(kThreads)
scan_kernel(const Input* input, Output* output, Position length, int stripes) {
    __shared__ State warp_total[kWarps];

    // ---- one row per block, in the fewest warps; a warp holds `stripes` stripes of it
    const int warps = blockDim.x / 32, warp_items = stripes * stripe;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    // scan position of this thread's first item
    const Position first = warp * warp_items + lane * kItems;
    const Position warp_end = (warp + 1) * warp_items;
    const Position end = warp_end < length ? warp_end : length;  // end of this warp's items
    const Input* input_at = input + line * length + memory_index(first, kItems, length);
    Output* const output_at = output + line * length + memory_index(first, kItems, length);

    // ---- load
    InputVector x[kVectors];
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = kReverse ? kVectors - 1 - n : n;
        x[j] = first + j * stripe < end ? load_input(input_at + along(j * stripe)) : InputVector{};
    }

    // ---- scan the items in their thread, then across the lanes
    Items s[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        s[j] = lift_items(x[j]);
    State p[kRuns];
    State t[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) t[j] = scan_lanes(scan_items(s[j]), lane);
    State before = identity();
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        p[j] = chain_lanes(before, j < stripes ? t[j] : identity(), lane);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes<kWarps>(lane < warps ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) p[j] = combine(prefix, p[j]);

    // ---- store
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = kReverse ? kVectors - 1 - n : n;
        if (!(first + j * stripe < end)) continue;
        OutputVector y;
        make_results(y, p[j], s[j]);
        store_vector(output_at + along(j * stripe), y);
    }
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
constexpr int kLead = 0;  // items by which accesses begin before a row, at most
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
    const Position length = (Position)arguments->length;
    const int accesses = (int)((length + kItems + kLead - 1) / kItems);
    const int warps = (accesses + 32 * kVectors - 1) / (32 * kVectors);  // the fewest that hold a row
    const int stripes = (accesses + 32 * warps - 1) / (32 * warps);      // the fewest stripes per warp
    const long long blocks = arguments->lines;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32 * warps);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, length, stripes));
}
#endif
