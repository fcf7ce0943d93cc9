// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n128
//          128 float32 items, float32 out
// plan     warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 32
//          a row of 128 fits in 32 lane(s), 1 access(es) of 4 item(s) each
// target   sm_90
// content  sha256 5e5c548453c58bc4 of everything below this banner
// again    scanops generate prod-f32-n128 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

// Compensation: what rounding has lost so far, and a total with it added. Infinities and NaN carry none; -0 keeps its sign.
__device__ __forceinline__ Value lose(Value lost, Value older, Value newer) { return fma(lost, newer, fma(older, newer, -(older * newer))); }

__device__ __forceinline__ Value regain(Value total, Value lost) { return total - total == 0 && total != 0 ? total + lost : total; }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
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

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    y.item[2] = result(combine(prefix, s.item[2]));
    y.item[3] = result(combine(prefix, s.item[3]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    s.item[1] = element(x.item[1]);
    s.item[2] = element(x.item[2]);
    s.item[3] = element(x.item[3]);
    return s;
}

// Inclusive scan of the items in place; returns their total, with the compensation added.
__device__ __forceinline__ State scan_items(Items& s) {
    Value lost = 0;
    lost = lose(lost, s.item[0], s.item[1]);
    s.item[1] = combine(s.item[0], s.item[1]);
    lost = lose(lost, s.item[1], s.item[2]);
    s.item[2] = combine(s.item[1], s.item[2]);
    lost = lose(lost, s.item[2], s.item[3]);
    s.item[3] = combine(s.item[2], s.item[3]);
    return s.item[3] = regain(s.item[3], lost);
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
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

__global__ void __launch_bounds__(128)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- 32 lane(s) per row, 4 rows per block
    const int lane = threadIdx.x % 32;
    const long long line = (long long)blockIdx.x * 4 + threadIdx.x / 32;
    const bool live = line < lines;
    const int first = lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 128 + first;
    Output* y = output + line * 128 + first;

    // ---- load 1 x 4 items per lane
    InputVector x0 = live ? load_input(x) : InputVector{};

    // ---- scan each access in its thread, then across the lanes of the row
    Items s0 = lift_items(x0);
    const State t0 = scan_lanes(scan_items(s0), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);

    // ---- store
    if (live) store_items(y, p0, s0);
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
    const long long blocks = (arguments->lines + 3) / 4;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(128);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines));
}
#endif
