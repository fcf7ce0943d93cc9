// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n32768-mask_b8
//          32768 float32 items, the bool mask selects, float32 out
// plan     block: threads 512, items 4, tiles 1, vectors 16, boundary 0, alone True
//          a row of 32768 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 1ab4da1788d472af of everything below this banner
// again    scanops generate sum-f32-n32768-mask_b8 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef unsigned char Mask;  // bool
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

// A masked-out item counts as the identity, whatever its value.
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift(x) : identity(); }

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
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    y.item[2] = result(combine(prefix, s.item[2]));
    y.item[3] = result(combine(prefix, s.item[3]));
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

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, const Mask* mask, Output* output) {
    __shared__ State warp_total[16];

    // ---- one row per block, 32768 item slots; a warp holds 2048 of them, in 16 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 2048 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 32768 + first;
    const Mask* m = mask + line * 32768 + first;
    Output* y = output + line * 32768 + first;

    // ---- load 16 x 4 items a thread
    InputVector x0 = load_input(x);
    InputVector x1 = load_input(x + 128);
    InputVector x2 = load_input(x + 256);
    InputVector x3 = load_input(x + 384);
    InputVector x4 = load_input(x + 512);
    InputVector x5 = load_input(x + 640);
    InputVector x6 = load_input(x + 768);
    InputVector x7 = load_input(x + 896);
    InputVector x8 = load_input(x + 1024);
    InputVector x9 = load_input(x + 1152);
    InputVector x10 = load_input(x + 1280);
    InputVector x11 = load_input(x + 1408);
    InputVector x12 = load_input(x + 1536);
    InputVector x13 = load_input(x + 1664);
    InputVector x14 = load_input(x + 1792);
    InputVector x15 = load_input(x + 1920);
    MaskVector m0 = load_mask(m);
    MaskVector m1 = load_mask(m + 128);
    MaskVector m2 = load_mask(m + 256);
    MaskVector m3 = load_mask(m + 384);
    MaskVector m4 = load_mask(m + 512);
    MaskVector m5 = load_mask(m + 640);
    MaskVector m6 = load_mask(m + 768);
    MaskVector m7 = load_mask(m + 896);
    MaskVector m8 = load_mask(m + 1024);
    MaskVector m9 = load_mask(m + 1152);
    MaskVector m10 = load_mask(m + 1280);
    MaskVector m11 = load_mask(m + 1408);
    MaskVector m12 = load_mask(m + 1536);
    MaskVector m13 = load_mask(m + 1664);
    MaskVector m14 = load_mask(m + 1792);
    MaskVector m15 = load_mask(m + 1920);

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0, m0);
    Items s1 = lift_items(x1, m1);
    Items s2 = lift_items(x2, m2);
    Items s3 = lift_items(x3, m3);
    Items s4 = lift_items(x4, m4);
    Items s5 = lift_items(x5, m5);
    Items s6 = lift_items(x6, m6);
    Items s7 = lift_items(x7, m7);
    Items s8 = lift_items(x8, m8);
    Items s9 = lift_items(x9, m9);
    Items s10 = lift_items(x10, m10);
    Items s11 = lift_items(x11, m11);
    Items s12 = lift_items(x12, m12);
    Items s13 = lift_items(x13, m13);
    Items s14 = lift_items(x14, m14);
    Items s15 = lift_items(x15, m15);

    // ---- scan each access in its thread, then across the lanes of the warp
    const State t0 = scan_lanes(scan_items(s0), lane);
    const State t1 = scan_lanes(scan_items(s1), lane);
    const State t2 = scan_lanes(scan_items(s2), lane);
    const State t3 = scan_lanes(scan_items(s3), lane);
    const State t4 = scan_lanes(scan_items(s4), lane);
    const State t5 = scan_lanes(scan_items(s5), lane);
    const State t6 = scan_lanes(scan_items(s6), lane);
    const State t7 = scan_lanes(scan_items(s7), lane);
    const State t8 = scan_lanes(scan_items(s8), lane);
    const State t9 = scan_lanes(scan_items(s9), lane);
    const State t10 = scan_lanes(scan_items(s10), lane);
    const State t11 = scan_lanes(scan_items(s11), lane);
    const State t12 = scan_lanes(scan_items(s12), lane);
    const State t13 = scan_lanes(scan_items(s13), lane);
    const State t14 = scan_lanes(scan_items(s14), lane);
    const State t15 = scan_lanes(scan_items(s15), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);
    const State p1 = chain_lanes(before, t1, lane);
    const State p2 = chain_lanes(before, t2, lane);
    const State p3 = chain_lanes(before, t3, lane);
    const State p4 = chain_lanes(before, t4, lane);
    const State p5 = chain_lanes(before, t5, lane);
    const State p6 = chain_lanes(before, t6, lane);
    const State p7 = chain_lanes(before, t7, lane);
    const State p8 = chain_lanes(before, t8, lane);
    const State p9 = chain_lanes(before, t9, lane);
    const State p10 = chain_lanes(before, t10, lane);
    const State p11 = chain_lanes(before, t11, lane);
    const State p12 = chain_lanes(before, t12, lane);
    const State p13 = chain_lanes(before, t13, lane);
    const State p14 = chain_lanes(before, t14, lane);
    const State p15 = chain_lanes(before, t15, lane);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes(lane < 16 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    store_items(y, combine(prefix, p0), s0);
    store_items(y + 128, combine(prefix, p1), s1);
    store_items(y + 256, combine(prefix, p2), s2);
    store_items(y + 384, combine(prefix, p3), s3);
    store_items(y + 512, combine(prefix, p4), s4);
    store_items(y + 640, combine(prefix, p5), s5);
    store_items(y + 768, combine(prefix, p6), s6);
    store_items(y + 896, combine(prefix, p7), s7);
    store_items(y + 1024, combine(prefix, p8), s8);
    store_items(y + 1152, combine(prefix, p9), s9);
    store_items(y + 1280, combine(prefix, p10), s10);
    store_items(y + 1408, combine(prefix, p11), s11);
    store_items(y + 1536, combine(prefix, p12), s12);
    store_items(y + 1664, combine(prefix, p13), s13);
    store_items(y + 1792, combine(prefix, p14), s14);
    store_items(y + 1920, combine(prefix, p15), s15);
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
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output));
}
#endif
