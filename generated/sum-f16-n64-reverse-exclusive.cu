// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f16-n64-reverse-exclusive
//          64 float16 items, reverse, exclusive, float16 out
// plan     warp: threads 128, items 8, tiles 1, vectors 1, boundary 0, lanes 8
//          a row of 64 fits in 8 lane(s), 1 access(es) of 8 item(s) each
// target   sm_90
// content  sha256 0814e3c5732e04cc of everything below this banner
// again    scanops generate sum-f16-n64-reverse-exclusive --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // float16
typedef unsigned short Output;  // float16
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift(half_to_float(x)); }

__device__ __forceinline__ Output result(State state) { return float_to_half(state); }

// ---- 8 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(8 * sizeof(Input)) InputVector {
    Input item[8];
};
struct alignas(8 * sizeof(Output)) OutputVector {
    Output item[8];
};
struct Items {
    State item[8];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[7] = result(prefix);
    y.item[6] = result(combine(prefix, s.item[0]));
    y.item[5] = result(combine(prefix, s.item[1]));
    y.item[4] = result(combine(prefix, s.item[2]));
    y.item[3] = result(combine(prefix, s.item[3]));
    y.item[2] = result(combine(prefix, s.item[4]));
    y.item[1] = result(combine(prefix, s.item[5]));
    y.item[0] = result(combine(prefix, s.item[6]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[7]);
    s.item[1] = element(x.item[6]);
    s.item[2] = element(x.item[5]);
    s.item[3] = element(x.item[4]);
    s.item[4] = element(x.item[3]);
    s.item[5] = element(x.item[2]);
    s.item[6] = element(x.item[1]);
    s.item[7] = element(x.item[0]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    s.item[1] = combine(s.item[0], s.item[1]);
    s.item[2] = combine(s.item[1], s.item[2]);
    s.item[3] = combine(s.item[2], s.item[3]);
    s.item[4] = combine(s.item[3], s.item[4]);
    s.item[5] = combine(s.item[4], s.item[5]);
    s.item[6] = combine(s.item[5], s.item[6]);
    s.item[7] = combine(s.item[6], s.item[7]);
    return s.item[7];
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

// The exclusive prefix of this lane's vector, given that of the row's vectors; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, 7));
    return prefix;
}

__global__ void __launch_bounds__(128)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- 8 lane(s) per row, 16 rows per block
    const int lane = threadIdx.x % 8;
    const long long line = (long long)blockIdx.x * 16 + threadIdx.x / 8;
    const bool live = line < lines;
    const int first = lane * 8;  // the scan position of this thread's first item
    const Input* x = input + line * 64 + (56 - first);
    Output* y = output + line * 64 + (56 - first);

    // ---- load 1 x 8 items per lane
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
    const long long blocks = (arguments->lines + 15) / 16;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(128);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines));
}
#endif
