// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n32768-unaligned
//          32768 float32 items, unaligned, float32 out
// plan     block: threads 512, items 1, tiles 4, vectors 16, alone True
//          a row of 32768 outgrows the registers of a block: 4 tiles, the next one's loads in flight
// target   sm_90
// content  sha256 1324c28526b6dedd of everything below this banner
// again    scanops generate sum-f32-n32768-unaligned --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

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

// The prefix of this lane's vector, given what precedes the vectors of all lanes; moves `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, 31));
    return prefix;
}

// The total of the warps before this one, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, Output* output) {
    __shared__ State warp_total[2][16];  // by the parity of the tile, so that one barrier a tile is enough

    // ---- a block scans a row, 8192 items at a time; a warp holds 512 of them, in 16 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    int first = warp * 512 + lane * 1;  // the scan position of this thread's first item
    const Input* x = input + line * 32768 + first;
    Output* y = output + line * 32768 + first;

    // ---- load 16 x 1 items a thread
    InputVector x0 = load_input(x);
    InputVector x1 = load_input(x + 32);
    InputVector x2 = load_input(x + 64);
    InputVector x3 = load_input(x + 96);
    InputVector x4 = load_input(x + 128);
    InputVector x5 = load_input(x + 160);
    InputVector x6 = load_input(x + 192);
    InputVector x7 = load_input(x + 224);
    InputVector x8 = load_input(x + 256);
    InputVector x9 = load_input(x + 288);
    InputVector x10 = load_input(x + 320);
    InputVector x11 = load_input(x + 352);
    InputVector x12 = load_input(x + 384);
    InputVector x13 = load_input(x + 416);
    InputVector x14 = load_input(x + 448);
    InputVector x15 = load_input(x + 480);

    State carry = identity();  // everything before this tile
    for (int tile = 0; tile < 4; ++tile) {
        // ---- items become states, in scan order
        Items s0 = lift_items(x0);
        Items s1 = lift_items(x1);
        Items s2 = lift_items(x2);
        Items s3 = lift_items(x3);
        Items s4 = lift_items(x4);
        Items s5 = lift_items(x5);
        Items s6 = lift_items(x6);
        Items s7 = lift_items(x7);
        Items s8 = lift_items(x8);
        Items s9 = lift_items(x9);
        Items s10 = lift_items(x10);
        Items s11 = lift_items(x11);
        Items s12 = lift_items(x12);
        Items s13 = lift_items(x13);
        Items s14 = lift_items(x14);
        Items s15 = lift_items(x15);

        // ---- the next tile's loads, in flight while this one is scanned
        if (tile < 3) {
            x0 = load_input(x + 8192);
            x1 = load_input(x + 8224);
            x2 = load_input(x + 8256);
            x3 = load_input(x + 8288);
            x4 = load_input(x + 8320);
            x5 = load_input(x + 8352);
            x6 = load_input(x + 8384);
            x7 = load_input(x + 8416);
            x8 = load_input(x + 8448);
            x9 = load_input(x + 8480);
            x10 = load_input(x + 8512);
            x11 = load_input(x + 8544);
            x12 = load_input(x + 8576);
            x13 = load_input(x + 8608);
            x14 = load_input(x + 8640);
            x15 = load_input(x + 8672);
        }

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
        if (lane == 31) warp_total[tile % 2][warp] = before;
        __syncthreads();
        const State totals = scan_lanes(lane < 16 ? warp_total[tile % 2][lane] : identity(), lane);
        const State prefix = combine(carry, warps_before(totals, warp));
        carry = combine(carry, shuffle(totals, 15));

        // ---- store
        store_items(y, combine(prefix, p0), s0);
        store_items(y + 32, combine(prefix, p1), s1);
        store_items(y + 64, combine(prefix, p2), s2);
        store_items(y + 96, combine(prefix, p3), s3);
        store_items(y + 128, combine(prefix, p4), s4);
        store_items(y + 160, combine(prefix, p5), s5);
        store_items(y + 192, combine(prefix, p6), s6);
        store_items(y + 224, combine(prefix, p7), s7);
        store_items(y + 256, combine(prefix, p8), s8);
        store_items(y + 288, combine(prefix, p9), s9);
        store_items(y + 320, combine(prefix, p10), s10);
        store_items(y + 352, combine(prefix, p11), s11);
        store_items(y + 384, combine(prefix, p12), s12);
        store_items(y + 416, combine(prefix, p13), s13);
        store_items(y + 448, combine(prefix, p14), s14);
        store_items(y + 480, combine(prefix, p15), s15);
        first += 8192;
        x += 8192;
        y += 8192;
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
    const long long blocks = arguments->lines;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel,
                              (const Input*)arguments->input, (Output*)arguments->output);
}
#endif
