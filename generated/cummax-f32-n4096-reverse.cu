// scanops: y[i] = max(x[0], x[1], ..., x[i]), and its index: of equals and of NaNs the last one's
//
// spec     cummax-f32-n4096-reverse
//          4096 float32 items, reverse, float32 out
// plan     block: threads 512, items 2, tiles 1, vectors 4, boundary 0, alone False
//          a row of 4096 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 65c55caaec82c949 of everything below this banner
// again    scanops generate cummax-f32-n4096-reverse --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
enum Index : long long {};  // index of a result's item in its line, -1 for none; a type distinct from Output
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value value;
    int index;
};

// ---- the plan: block
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 4096;  // of a line, in items
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 512;  // of a block
constexpr int kWarps = 16;  // of a block
constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 2;  // of an access
constexpr int kVectors = 4;  // accesses of a thread
constexpr int kRun = 2;  // consecutive items that a thread scans serially
constexpr int kRuns = 4;  // of a thread
constexpr int kOutItems = 2;  // of a store
constexpr int stripe = 64;  // items of one access of all lanes of a row
constexpr int kWarpItems = 256;  // of a warp in a tile
static_assert(kThreads % 32 == 0, "blocks of whole warps");

// ---- operator cummax: y[i] = max(x[0], x[1], ..., x[i]), and its index: of equals and of NaNs the last one's
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

__device__ __forceinline__ bool is_nan(Value x) { return x != x; }

__device__ __forceinline__ State identity() { return {-infinity(), -1}; }

__device__ __forceinline__ State lift(Value x, int i) {
    return {x, i};
}

__device__ __forceinline__ State combine(State older, State newer) {
    return newer.index >= 0 && (is_nan(newer.value) || newer.value >= older.value) ? newer : older;
}

// combine where `newer` is the state of one item.
__device__ __forceinline__ State append(State older, State newer) { return combine(older, newer); }

__device__ __forceinline__ State element(Input x, int i) {
    return lift(x, i);
}

__device__ __forceinline__ Output output_of(State state) { return state.value; }

__device__ __forceinline__ Index index_of(State state) { return (Index)state.index; }

// ---- accesses hold items in memory order, Items hold states in scan order
struct alignas(kItems * sizeof(Input)) InputVector {
    Input item[kItems];
};
static_assert((kItems & (kItems - 1)) == 0 && sizeof(InputVector) <= 16, "an access is one instruction");
struct alignas(kOutItems * sizeof(Output)) OutputVector {
    Output item[kOutItems];
};
struct alignas(kOutItems * sizeof(Index)) IndexVector {
    Index item[kOutItems];
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

// States of consecutive items; `i`: index of the first one in its line.
__device__ __forceinline__ Items lift_items(const InputVector& x, int i) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRun; ++k)
        s.item[k] = element(x.item[place_of(k, kItems)], kReverse ? i - k : i + k);
    return s;
}

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

template <class Item, class Vector>
__device__ __forceinline__ void store_vector(Item* first, const Vector& y) {
    *reinterpret_cast<Vector*>(first) = y;
}

// The total of consecutive items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRun; ++k) total = append(total, s.item[k]);
    return total;
}

// Results of consecutive items, given the prefix before them.
__device__ __forceinline__ void make_results(OutputVector& y, IndexVector& z, State prefix, const Items& s) {
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        prefix = append(prefix, s.item[k]);
        y.item[place_of(k, kItems)] = output_of(prefix);
        z.item[place_of(k, kItems)] = index_of(prefix);
    }
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.value, distance, kLanes), __shfl_up_sync(0xffffffffu, s.index, distance, kLanes)};
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
    return {__shfl_sync(0xffffffffu, s.value, source, kLanes), __shfl_sync(0xffffffffu, s.index, source, kLanes)};
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
scan_kernel(const Input* input, Output* output, Index* indices) {
    __shared__ State warp_total[kWarps];

    // ---- one row per block; a warp holds `kVectors` stripes of it
    constexpr int warps = kWarps, warp_items = kWarpItems;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    // scan position of this thread's first item
    const Position first = warp * warp_items + lane * kItems;
    const Input* input_at = input + line * length + memory_index(first, kItems, length);
    Output* const output_at = output + line * length + memory_index(first, kItems, length);
    Index* const indices_at = indices + line * length + memory_index(first, kItems, length);

    // ---- load
    InputVector x[kVectors];
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = kReverse ? kVectors - 1 - n : n;
        x[j] = load_input(input_at + along(j * stripe));
    }

    // ---- scan the items in their thread, then across the lanes
    Items s[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        s[j] = lift_items(x[j], (int)memory_index(first + j * stripe, 1, length));
    State p[kRuns];
    State t[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) t[j] = scan_lanes(scan_items(s[j]), lane);
    State before = identity();
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        p[j] = chain_lanes(before, t[j], lane);

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
        OutputVector y;
        IndexVector z;
        make_results(y, z, p[j], s[j]);
        store_vector(output_at + along(j * stripe), y);
        store_vector(indices_at + along(j * stripe), z);
    }
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
constexpr int kRows = 1;  // of a block
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
    const long long blocks = (arguments->lines + kRows - 1) / kRows;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(kThreads);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, (Index*)arguments->indices));
}
#endif
