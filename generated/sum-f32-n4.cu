// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n4
//          4 float32 items, float32 out
// plan     warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 1
//          a row of 4 fits in 1 lane(s), 1 access(es) of 4 item(s) each
// target   sm_90
// content  sha256 22de40c224e322d7 of everything below this banner
// again    scanops generate sum-f32-n4 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

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

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    s.item[1] = combine(s.item[0], s.item[1]);
    s.item[2] = combine(s.item[1], s.item[2]);
    s.item[3] = combine(s.item[2], s.item[3]);
    return s.item[3];
}

__global__ void __launch_bounds__(128)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- 1 lane(s) per row, 128 rows per block
    const long long line = (long long)blockIdx.x * 128 + threadIdx.x;
    const bool live = line < lines;
    const int first = 0;  // the scan position of this thread's first item
    const Input* x = input + line * 4 + first;
    Output* y = output + line * 4 + first;

    // ---- load 1 x 4 items per lane
    InputVector x0 = live ? load_input(x) : InputVector{};

    // ---- scan each access in its thread
    Items s0 = lift_items(x0);
    State before = identity();
    const State p0 = before;
    before = combine(before, scan_items(s0));

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
    const long long blocks = (arguments->lines + 127) / 128;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(128);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines));
}
#endif
