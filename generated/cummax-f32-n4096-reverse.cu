// scanops: y[i] = max(x[0], x[1], ..., x[i]), and its index: of equals and of NaNs the last one's
//
// spec     cummax-f32-n4096-reverse
//          4096 float32 items, reverse, float32 out
// plan     block: threads 512, items 2, tiles 1, vectors 4, boundary 0, alone False
//          a row of 4096 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 f7771bddde52e4d5 of everything below this banner
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

// ---- operator cummax: y[i] = max(x[0], x[1], ..., x[i]), and its index: of equals and of NaNs the last one's
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

__device__ __forceinline__ bool is_nan(Value x) { return x != x; }

__device__ __forceinline__ State identity() { return {-infinity(), -1}; }

__device__ __forceinline__ State lift(Value x, int i) { return {x, i}; }

__device__ __forceinline__ State combine(State older, State newer) {
    return newer.index >= 0 && (is_nan(newer.value) || newer.value >= older.value) ? newer : older;
}

__device__ __forceinline__ State element(Input x, int i) { return lift(x, i); }

__device__ __forceinline__ Output result(State state) { return state.value; }

__device__ __forceinline__ Index index_of(State state) { return (Index)state.index; }

// ---- 2 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(2 * sizeof(Input)) InputVector {
    Input item[2];
};
struct alignas(2 * sizeof(Output)) OutputVector {
    Output item[2];
};
struct alignas(2 * sizeof(Index)) IndexVector {
    Index item[2];
};
struct Items {
    State item[2];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    prefix = combine(prefix, s.item[0]);
    y.item[1] = result(prefix);
    prefix = combine(prefix, s.item[1]);
    y.item[0] = result(prefix);
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ void store_items(Index* first, State prefix, const Items& s) {
    IndexVector y;
    prefix = combine(prefix, s.item[0]);
    y.item[1] = index_of(prefix);
    prefix = combine(prefix, s.item[1]);
    y.item[0] = index_of(prefix);
    *reinterpret_cast<IndexVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x, int i) {
    Items s;
    s.item[0] = element(x.item[1], i);
    s.item[1] = element(x.item[0], i - 1);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = s.item[0];
    total = combine(total, s.item[1]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.value, distance, 32), __shfl_up_sync(0xffffffffu, s.index, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.value, source, 32), __shfl_sync(0xffffffffu, s.index, source, 32)};
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

__global__ void __launch_bounds__(512)
scan_kernel(const Input* input, Output* output, Index* indices) {
    __shared__ State warp_total[16];

    // ---- one row per block, 4096 item slots; a warp holds 256 of them, in 4 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 256 + lane * 2;  // the scan position of this thread's first item
    const Input* x = input + line * 4096 + (4094 - first);
    Output* y = output + line * 4096 + (4094 - first);
    Index* z = indices + line * 4096 + (4094 - first);

    // ---- load 4 x 2 items a thread
    InputVector x3 = load_input(x - 192);
    InputVector x2 = load_input(x - 128);
    InputVector x1 = load_input(x - 64);
    InputVector x0 = load_input(x);

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0, 4096 - 1 - first);
    Items s1 = lift_items(x1, 4096 - 1 - (first + 64));
    Items s2 = lift_items(x2, 4096 - 1 - (first + 128));
    Items s3 = lift_items(x3, 4096 - 1 - (first + 192));

    // ---- scan each access in its thread, then across the lanes of the warp
    const State t0 = scan_lanes(scan_items(s0), lane);
    const State t1 = scan_lanes(scan_items(s1), lane);
    const State t2 = scan_lanes(scan_items(s2), lane);
    const State t3 = scan_lanes(scan_items(s3), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);
    const State p1 = chain_lanes(before, t1, lane);
    const State p2 = chain_lanes(before, t2, lane);
    const State p3 = chain_lanes(before, t3, lane);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes(lane < 16 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    store_items(y - 192, combine(prefix, p3), s3);
    store_items(y - 128, combine(prefix, p2), s2);
    store_items(y - 64, combine(prefix, p1), s1);
    store_items(y, combine(prefix, p0), s0);
    store_items(z - 192, combine(prefix, p3), s3);
    store_items(z - 128, combine(prefix, p2), s2);
    store_items(z - 64, combine(prefix, p1), s1);
    store_items(z, combine(prefix, p0), s0);
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
    Index* const indices = (Index*)arguments->indices;
    const long long blocks = arguments->lines;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, indices));
}
#endif
