// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-bf16-n6144-mask_f32-exclusive
//          6144 bfloat16 items, the float32 mask multiplies, exclusive, float32 out
// plan     block: threads 384, items 4, tiles 1, vectors 4, boundary 0, alone False
//          a row of 6144 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 85747dbcbac9ff93 of everything below this banner
// again    scanops generate sum-bf16-n6144-mask_f32-exclusive --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef float Mask;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

__device__ __forceinline__ unsigned short float_to_bfloat(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x, Mask m) { return lift(bfloat_to_float(x) * m); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
};
struct alignas(4 * sizeof(Mask)) MaskVector {
    Mask item[4];
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

__device__ __forceinline__ MaskVector load_mask(const Mask* first) {
    return *reinterpret_cast<const MaskVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(prefix);
    y.item[1] = result(combine(prefix, s.item[0]));
    y.item[2] = result(combine(prefix, s.item[1]));
    y.item[3] = result(combine(prefix, s.item[2]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const MaskVector& m) {
    Items s;
    s.item[0] = element(x.item[0], m.item[0]);
    s.item[1] = element(x.item[1], m.item[1]);
    s.item[2] = element(x.item[2], m.item[2]);
    s.item[3] = element(x.item[3], m.item[3]);
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

__global__ void __launch_bounds__(384)
scan_kernel(const Input* input, const Mask* mask, Output* output) {
    __shared__ State warp_total[12];

    // ---- one row per block, 6144 item slots; a warp holds 512 of them, in 4 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 512 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 6144 + first;
    const Mask* m = mask + line * 6144 + first;
    Output* y = output + line * 6144 + first;

    // ---- load 4 x 4 items a thread
    InputVector x0 = load_input(x);
    InputVector x1 = load_input(x + 128);
    InputVector x2 = load_input(x + 256);
    InputVector x3 = load_input(x + 384);
    MaskVector m0 = load_mask(m);
    MaskVector m1 = load_mask(m + 128);
    MaskVector m2 = load_mask(m + 256);
    MaskVector m3 = load_mask(m + 384);

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0, m0);
    Items s1 = lift_items(x1, m1);
    Items s2 = lift_items(x2, m2);
    Items s3 = lift_items(x3, m3);

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
    const State totals = scan_lanes(lane < 12 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    store_items(y, combine(prefix, p0), s0);
    store_items(y + 128, combine(prefix, p1), s1);
    store_items(y + 256, combine(prefix, p2), s2);
    store_items(y + 384, combine(prefix, p3), s3);
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
    config.blockDim = dim3(384);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output));
}
#endif
