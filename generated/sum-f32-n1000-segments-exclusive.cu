// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n1000-segments-exclusive
//          1000 float32 items, segments, exclusive, float32 out
// plan     block: threads 128, items 4, tiles 1, vectors 2, boundary 0, alone False
//          a row of 1000 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 4cfcf1904d186048 of everything below this banner
// again    scanops generate sum-f32-n1000-segments-exclusive --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef unsigned char Start;  // bool
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value Plain;  // scan state of a contiguous range of items
struct State {  // operator state and segment bounds of a range
    Plain plain;
    int bounds;  // 1: a segment begins, which hides older items; 2: it begins at the last item
};

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ Plain plain_identity() { return 0; }

__device__ __forceinline__ Plain lift(Value x) { return x; }

__device__ __forceinline__ Plain plain_combine(Plain older, Plain newer) {
    return older + newer;
}

__device__ __forceinline__ State identity() { return {plain_identity(), 0}; }

__device__ __forceinline__ State combine(State older, State newer) {
    if (newer.bounds) return newer;
    return {plain_combine(older.plain, newer.plain), older.bounds & 1};
}

// The prefix before an item within its own segment.
__device__ __forceinline__ State within(State before, State own) { return own.bounds & 2 ? identity() : before; }

__device__ __forceinline__ State element(Input x, Start b) { return {lift(x), b ? 3 : 0}; }

__device__ __forceinline__ Output plain_result(Plain state) { return state; }

__device__ __forceinline__ Output result(State state) { return plain_result(state.plain); }

// ---- 4 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
};
struct alignas(4 * sizeof(Start)) StartVector {
    Start item[4];
};
struct alignas(4 * sizeof(Output)) OutputVector {
    Output item[4];
};
struct Items {
    State item[4];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ StartVector load_starts(const Start* first) {
    return *reinterpret_cast<const StartVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(within(prefix, s.item[0]));
    prefix = combine(prefix, s.item[0]);
    y.item[1] = result(within(prefix, s.item[1]));
    prefix = combine(prefix, s.item[1]);
    y.item[2] = result(within(prefix, s.item[2]));
    prefix = combine(prefix, s.item[2]);
    y.item[3] = result(within(prefix, s.item[3]));
    prefix = combine(prefix, s.item[3]);
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const StartVector& b) {
    Items s;
    s.item[0] = element(x.item[0], b.item[0]);
    s.item[1] = element(x.item[1], b.item[1]);
    s.item[2] = element(x.item[2], b.item[2]);
    s.item[3] = element(x.item[3], b.item[3]);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = s.item[0];
    total = combine(total, s.item[1]);
    total = combine(total, s.item[2]);
    total = combine(total, s.item[3]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.plain, distance, 32), __shfl_up_sync(0xffffffffu, s.bounds, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.plain, source, 32), __shfl_sync(0xffffffffu, s.bounds, source, 32)};
}

// Inclusive scan across lanes, 5 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_up(s, 1);
    if (lane >= 1) s = combine(older, s);
    older = shuffle_up(s, 2);
    if (lane >= 2) s = combine(older, s);
    older = shuffle_up(s, 4);
    if (lane >= 4) s = combine(older, s);
    older = shuffle_up(s, 8);
    if (lane >= 8) s = combine(older, s);
    older = shuffle_up(s, 16);
    if (lane >= 16) s = combine(older, s);
    return s;
}

// The exclusive prefix of this lane's vector, given that of the row's vectors; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, 31));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

__global__ void __launch_bounds__(128)
scan_kernel(const Input* input, const Start* starts, Output* output) {
    __shared__ State warp_total[4];

    // ---- one row per block, 1024 item slots; a warp holds 256 of them, in 2 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 256 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 1000 + first;
    const Start* b = starts + line * 1000 + first;
    Output* y = output + line * 1000 + first;

    // ---- load 2 x 4 items a thread
    InputVector x0 = first < 1000 ? load_input(x) : InputVector{};
    InputVector x1 = first + 128 < 1000 ? load_input(x + 128) : InputVector{};
    StartVector b0 = first < 1000 ? load_starts(b) : StartVector{};
    StartVector b1 = first + 128 < 1000 ? load_starts(b + 128) : StartVector{};

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0, b0);
    Items s1 = lift_items(x1, b1);

    // ---- scan each access in its thread, then across the lanes of the warp
    const State t0 = scan_lanes(scan_items(s0), lane);
    const State t1 = scan_lanes(scan_items(s1), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);
    const State p1 = chain_lanes(before, t1, lane);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes(lane < 4 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    if (first < 1000) store_items(y, combine(prefix, p0), s0);
    if (first + 128 < 1000) store_items(y + 128, combine(prefix, p1), s1);
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
    const long long blocks = arguments->lines;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(128);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Start*)arguments->starts, (Output*)arguments->output));
}
#endif
