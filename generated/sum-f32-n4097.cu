// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n4097
//          4097 float32 items, float32 out
// plan     block: threads 96, items 4, tiles 1, vectors 13, boundary 32, alone False
//          a row of 4097 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 76a9f75847b9b3e6 of everything below this banner
// again    scanops generate sum-f32-n4097 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: block
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 4097;  // of a line, in items
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kThreads = 96;  // of a block
constexpr int kWarps = 3;  // of a block
constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 4;  // of an access
constexpr int kVectors = 13;  // accesses of a thread
constexpr int kRun = 4;  // consecutive items that a thread scans serially
constexpr int kRuns = 13;  // of a thread
constexpr int kOutItems = 4;  // of a store
constexpr int stripe = 128;  // items of one access of all lanes of a row
constexpr int kWarpItems = 1664;  // of a warp in a tile
constexpr int kBoundary = 32;  // items; accesses of misaligned rows stay on multiples of this
static_assert(kThreads % 32 == 0, "blocks of whole warps");

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

// ---- misaligned rows: accesses stay on boundaries, and overlap both ends of a row
__device__ __forceinline__ bool is_inside(Position position, Position length) {
    return (unsigned long long)position < (unsigned long long)length;
}

__device__ __forceinline__ bool is_whole(Position position, int items, Position length) {
    return position >= 0 && position <= length - items;
}

// Items from the boundary before a row to its first item in scan order.
__device__ __forceinline__ int lead_of(long long line, Position length) {
    const long long row = (line + kReverse) * length;
    return (int)((kReverse ? -row : row) & (kBoundary - 1));
}

// Items before the row's first are ignored.
__device__ __forceinline__ void begin_row(Items& s, Position position) {
#pragma unroll
    for (int k = 0; k < kItems; ++k)
        if (position < -k) s.item[k] = identity();
}

__device__ __forceinline__ InputVector load_input(const Input* first, Position position, Position length) {
    if (is_whole(position, kItems, length)) return *reinterpret_cast<const InputVector*>(first);
    InputVector vector = {};
#pragma unroll
    for (int k = 0; k < kItems; ++k)
        if (is_inside(position + place_of(k, kItems), length)) vector.item[k] = first[k];
    return vector;
}

template <class Item, class Vector>
__device__ __forceinline__ void store_vector(Item* first, const Vector& y, Position position, Position length) {
    if (!is_whole(position, kOutItems, length)) {
#pragma unroll
        for (int k = 0; k < kOutItems; ++k)
            if (is_inside(position + place_of(k, kOutItems), length)) first[k] = y.item[k];
        return;
    }
    *reinterpret_cast<Vector*>(first) = y;
}

// Inclusive scan of consecutive items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        s.item[k] = combine(s.item[k - 1], s.item[k]);
    }
    return s.item[kRun - 1];
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
scan_kernel(const Input* input, Output* output) {
    __shared__ State warp_total[kWarps];

    // ---- one row per block; a warp holds `kVectors` stripes of it
    constexpr int warps = kWarps, warp_items = kWarpItems;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int lead = lead_of(line, length);
    // scan position of this thread's first item
    const Position first = warp * warp_items + lane * kItems - lead;
    const Input* input_at = input + line * length + memory_index(first, kItems, length);
    Output* const output_at = output + line * length + memory_index(first, kItems, length);

    // ---- load
    InputVector x[kVectors];
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = kReverse ? kVectors - 1 - n : n;
        x[j] = load_input(input_at + along(j * stripe), first + j * stripe, length);
    }

    // ---- scan the items in their thread, then across the lanes
    Items s[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        s[j] = lift_items(x[j]);
    begin_row(s[0], first);
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
        make_results(y, p[j], s[j]);
        store_vector(output_at + along(j * stripe), y, first + j * stripe, length);
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
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
