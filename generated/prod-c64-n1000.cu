// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-c64-n1000
//          1000 complex64 items, complex64 out
// plan     block: threads 192, items 2, tiles 1, vectors 3, boundary 0, alone False
//          a row of 1000 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 4ff6c224f63be7f3 of everything below this banner
// again    scanops generate prod-c64-n1000 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
    Real re, im;

    friend __device__ __forceinline__ bool operator!=(Complex a, Real b) { return a.re != b || a.im != 0; }

    friend __device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }

    friend __device__ __forceinline__ Complex operator*(Complex a, Complex b) {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
};

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Other x) { return {(Real)x, 0}; }

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Complex<Other> z) { return {(Real)z.re, (Real)z.im}; }

typedef Complex<float> Input;  // complex64
typedef Complex<float> Output;  // complex64
typedef Complex<float> Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return {1, 0}; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 2 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(2 * sizeof(Input)) InputVector {
    Input item[2];
};
struct alignas(2 * sizeof(Output)) OutputVector {
    Output item[2];
};
struct Items {
    State item[2];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    s.item[1] = element(x.item[1]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    s.item[1] = combine(s.item[0], s.item[1]);
    return s.item[1];
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.re, distance, 32), __shfl_up_sync(0xffffffffu, s.im, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.re, source, 32), __shfl_sync(0xffffffffu, s.im, source, 32)};
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

__global__ void __launch_bounds__(192)
scan_kernel(const Input* input, Output* output) {
    __shared__ State warp_total[6];

    // ---- one row per block, 1152 item slots; a warp holds 192 of them, in 3 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 192 + lane * 2;  // the scan position of this thread's first item
    const Input* x = input + line * 1000 + first;
    Output* y = output + line * 1000 + first;

    // ---- load 3 x 2 items a thread
    InputVector x0 = first < 1000 ? load_input(x) : InputVector{};
    InputVector x1 = first + 64 < 1000 ? load_input(x + 64) : InputVector{};
    InputVector x2 = first + 128 < 1000 ? load_input(x + 128) : InputVector{};

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0);
    Items s1 = lift_items(x1);
    Items s2 = lift_items(x2);

    // ---- scan each access in its thread, then across the lanes of the warp
    const State t0 = scan_lanes(scan_items(s0), lane);
    const State t1 = scan_lanes(scan_items(s1), lane);
    const State t2 = scan_lanes(scan_items(s2), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);
    const State p1 = chain_lanes(before, t1, lane);
    const State p2 = chain_lanes(before, t2, lane);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes(lane < 6 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    if (first < 1000) store_items(y, combine(prefix, p0), s0);
    if (first + 64 < 1000) store_items(y + 64, combine(prefix, p1), s1);
    if (first + 128 < 1000) store_items(y + 128, combine(prefix, p2), s2);
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
    config.blockDim = dim3(192);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
