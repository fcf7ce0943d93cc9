// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f64-n65536-inner6-exclusive-few
//          65536 float64 items of stride 6, exclusive, few, float64 out
// plan     columns: threads 256, items 4, tiles 512, columns 8, alone False
//          the scanned dimension has stride 6: 8 neighbouring columns a block
// target   sm_90
// content  sha256 2111bc0fde37ace1 of everything below this banner
// again    scanops generate prod-f64-n65536-inner6-exclusive-few --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef double Input;  // float64
typedef double Output;  // float64
typedef double Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 items: a run of a column, and as states in scan order
struct InputVector {
    Input item[4];
};
struct OutputVector {
    Output item[4];
};
struct Items {
    State item[4];
};

__device__ __forceinline__ InputVector load_input(const Input* first, long long step, long long live) {
    InputVector vector = {};
    if (live > 0) vector.item[0] = first[0];
    if (live > 1) vector.item[1] = first[1 * step];
    if (live > 2) vector.item[2] = first[2 * step];
    if (live > 3) vector.item[3] = first[3 * step];
    return vector;
}

__device__ __forceinline__ void store_items(Output* first, long long step, long long live, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(prefix);
    y.item[1] = result(combine(prefix, s.item[0]));
    y.item[2] = result(combine(prefix, s.item[1]));
    y.item[3] = result(combine(prefix, s.item[2]));
    if (live > 0) first[0] = y.item[0];
    if (live > 1) first[1 * step] = y.item[1];
    if (live > 2) first[2 * step] = y.item[2];
    if (live > 3) first[3 * step] = y.item[3];
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

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
}

// Inclusive scan across lanes, 2 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_up(s, 8);
    if (lane >= 8) s = combine(older, s);
    older = shuffle_up(s, 16);
    if (lane >= 16) s = combine(older, s);
    return s;
}

__global__ void __launch_bounds__(256)
scan_kernel(const Input* input, Output* output) {
    __shared__ State warp_total[2][8][8];  // by the parity of the tile

    // ---- a block scans columns, 8 x 128 rows at a time; a thread takes 4 of these rows
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 8;  // of the column among those of the block
    const long long outer = blockIdx.x;
    const long long column = place;
    const int first = (int)(threadIdx.x / 8) * 4;  // the scan position of this thread's first item
    const Input* x = input + (outer * 65536 + first) * 6 + column;
    Output* y = output + (outer * 65536 + first) * 6 + column;

    // ---- load 4 items of a column
    long long live = column < 6 ? 65536LL - first : 0;  // items from here to the end of the column
    InputVector x0 = load_input(x, 6, live);

    State carry = identity();  // everything before this tile
    for (int tile = 0; tile < 512; ++tile) {
        Items s = lift_items(x0);

        // ---- the next tile's loads, in flight while this one is scanned
        if (tile < 511) {
            x += 128LL * 6;
            x0 = load_input(x, 6, live - 128);
        }

        // ---- scan the run in its thread, then across the slots of the warp
        const State inclusive = scan_lanes(scan_items(s), lane);
        const State older = shuffle_up(inclusive, 8);
        const State inside = lane >= 8 ? older : identity();

        // ---- totals of the warps: each thread folds those of its column
        if (lane >= 24) warp_total[tile % 2][warp][place] = inclusive;
        __syncthreads();
        State prefix = carry;
        carry = combine(carry, warp_total[tile % 2][0][place]);
        if (warp == 1) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][1][place]);
        if (warp == 2) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][2][place]);
        if (warp == 3) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][3][place]);
        if (warp == 4) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][4][place]);
        if (warp == 5) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][5][place]);
        if (warp == 6) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][6][place]);
        if (warp == 7) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][7][place]);
        prefix = combine(prefix, inside);

        // ---- store
        store_items(y, 6, live, prefix, s);
        y += 128LL * 6;
        live -= 128;
    }
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
    const long long blocks = arguments->lines / 6 * 1;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel,
                              (const Input*)arguments->input, (Output*)arguments->output);
}
#endif
