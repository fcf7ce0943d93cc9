// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-i32-n7
//          7 int32 items, int64 out
// plan     warp: threads 256, items 1, tiles 1, vectors 1, lanes 8
//          a row of 7 fits in 8 lane(s), 1 access(es) of 1 item(s) each
// target   sm_90
// content  sha256 b1949c67305ae284 of everything below this banner
// again    scanops generate sum-i32-n7 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef int Input;  // int32
typedef long long Output;  // int64
typedef unsigned long long Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift((unsigned long long)((long long)(x))); }

__device__ __forceinline__ Output result(State state) { return (long long)(state); }

// ---- 1 items: as one access reads or writes them, and as states in scan order
struct alignas(1 * sizeof(Input)) InputVector {
    Input item[1];
};
struct alignas(1 * sizeof(Output)) OutputVector {
    Output item[1];
};
struct Items {
    State item[1];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    return s.item[0];
}

// ---- lanes, in groups of 8
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 8);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 8);
}

// Inclusive scan across lanes, 3 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_up(s, 1);
    if (lane >= 1) s = combine(older, s);
    older = shuffle_up(s, 2);
    if (lane >= 2) s = combine(older, s);
    older = shuffle_up(s, 4);
    if (lane >= 4) s = combine(older, s);
    return s;
}

// The prefix of this lane's vector, given what precedes the vectors of all lanes; moves `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, 7));
    return prefix;
}

__global__ void __launch_bounds__(256)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- a row is 8 lanes, a block 32 rows
    const int lane = threadIdx.x % 8;
    const int first = lane * 1;  // the scan position of this thread's first item
    const long long line = (long long)blockIdx.x * 32 + threadIdx.x / 8;
    const bool live = line < lines;
    const Input* x = input + line * 7 + first;
    Output* y = output + line * 7 + first;

    // ---- load 1 x 1 items a lane
    const InputVector x0 = live && first < 7 ? load_input(x) : InputVector{};

    // ---- scan each access in its thread, then across the lanes of the row
    Items s0 = lift_items(x0);
    const State t0 = scan_lanes(scan_items(s0), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);

    // ---- store
    if (live && first < 7) store_items(y, p0, s0);
}

#ifndef __CUDACC_RTC__  // the host's side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    void* output;
    void* workspace;
    long long lines;  // scanned sequences
    int multiprocessors;
};

extern "C" int scanops_abi() { return 1; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

extern "C" long long scanops_workspace_bytes(long long) { return 0; }

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = (arguments->lines + 31) / 32;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel,
                              (const Input*)arguments->input, (Output*)arguments->output, arguments->lines);
}
#endif
