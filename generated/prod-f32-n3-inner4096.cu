// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n3-inner4096
//          3 float32 items of stride 4096, float32 out
// plan     columns: threads 32, items 3, tiles 1, columns 32, alone False
//          the scanned dimension has stride 4096: 32 neighbouring columns a block
// target   sm_90
// content  sha256 3aad176c0f961f41 of everything below this banner
// again    scanops generate prod-f32-n3-inner4096 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 3 items: a run of a column, and as states in scan order
struct InputVector {
    Input item[3];
};
struct OutputVector {
    Output item[3];
};
struct Items {
    State item[3];
};

__device__ __forceinline__ InputVector load_input(const Input* first, long long step) {
    InputVector vector;
    vector.item[0] = first[0];
    vector.item[1] = first[1 * step];
    vector.item[2] = first[2 * step];
    return vector;
}

__device__ __forceinline__ void store_items(Output* first, long long step, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    y.item[2] = result(combine(prefix, s.item[2]));
    first[0] = y.item[0];
    first[1 * step] = y.item[1];
    first[2 * step] = y.item[2];
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    s.item[1] = element(x.item[1]);
    s.item[2] = element(x.item[2]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    s.item[1] = combine(s.item[0], s.item[1]);
    s.item[2] = combine(s.item[1], s.item[2]);
    return s.item[2];
}

__global__ void __launch_bounds__(32)
scan_kernel(const Input* input, Output* output) {
    // ---- a block scans columns, 32 x 3 rows at a time; a thread takes 3 of these rows
    const int place = threadIdx.x % 32;  // of the column among those of the block
    const long long outer = blockIdx.x / 128;
    const long long column = (long long)(blockIdx.x % 128) * 32 + place;
    const int first = (int)(threadIdx.x / 32) * 3;  // the scan position of this thread's first item
    const Input* x = input + (outer * 3 + first) * 4096 + column;
    Output* y = output + (outer * 3 + first) * 4096 + column;

    // ---- load 3 items of a column
    InputVector x0 = load_input(x, 4096);

    State carry = identity();  // everything before this tile
    Items s = lift_items(x0);

    // ---- scan the run in its thread
    const State inclusive = scan_items(s);
    State prefix = carry;
    carry = combine(carry, inclusive);

    // ---- store
    store_items(y, 4096, prefix, s);
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
    const long long blocks = arguments->lines / 4096 * 128;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel,
                              (const Input*)arguments->input, (Output*)arguments->output);
}
#endif
