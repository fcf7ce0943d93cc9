// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-bf16-n1000-mask_b8
//          1000 bfloat16 items, the bool mask selects, bfloat16 out
// plan     warp: threads 128, items 8, tiles 1, vectors 4, lanes 32
//          a row of 1000 fits in 32 lane(s), 4 access(es) of 8 item(s) each
// target   sm_90
// content  sha256 77c7ad32eee2c628 of everything below this banner
// again    scanops generate sum-bf16-n1000-mask_b8 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef unsigned char Mask;  // bool
typedef unsigned short Output;  // bfloat16
typedef float Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

#ifdef __CUDACC__  // on a CPU the emulator's cuda_runtime.h has these
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

// A masked-out element counts as the identity, whatever its value.
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift(bfloat_to_float(x)) : identity(); }

__device__ __forceinline__ Output result(State state) { return float_to_bfloat(state); }

// ---- 8 items: as one access reads or writes them, and as states in scan order
struct alignas(8 * sizeof(Input)) InputVector {
    Input item[8];
};
struct alignas(8 * sizeof(Mask)) MaskVector {
    Mask item[8];
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

__device__ __forceinline__ MaskVector load_mask(const Mask* first) {
    return *reinterpret_cast<const MaskVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    y.item[2] = result(combine(prefix, s.item[2]));
    y.item[3] = result(combine(prefix, s.item[3]));
    y.item[4] = result(combine(prefix, s.item[4]));
    y.item[5] = result(combine(prefix, s.item[5]));
    y.item[6] = result(combine(prefix, s.item[6]));
    y.item[7] = result(combine(prefix, s.item[7]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const MaskVector& m) {
    Items s;
    s.item[0] = element(x.item[0], m.item[0]);
    s.item[1] = element(x.item[1], m.item[1]);
    s.item[2] = element(x.item[2], m.item[2]);
    s.item[3] = element(x.item[3], m.item[3]);
    s.item[4] = element(x.item[4], m.item[4]);
    s.item[5] = element(x.item[5], m.item[5]);
    s.item[6] = element(x.item[6], m.item[6]);
    s.item[7] = element(x.item[7], m.item[7]);
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

__global__ void __launch_bounds__(128)
scan_kernel(const Input* input, const Mask* mask, Output* output, long long lines) {
    // ---- a row is 32 lanes, a block 4 rows
    const int lane = threadIdx.x % 32;
    const int first = lane * 8;  // the scan position of this thread's first item
    const long long line = (long long)blockIdx.x * 4 + threadIdx.x / 32;
    const bool live = line < lines;
    const Input* x = input + line * 1000 + first;
    const Mask* m = mask + line * 1000 + first;
    Output* y = output + line * 1000 + first;

    // ---- load 4 x 8 items a lane
    const InputVector x0 = live && first < 1000 ? load_input(x) : InputVector{};
    const InputVector x1 = live && first + 256 < 1000 ? load_input(x + 256) : InputVector{};
    const InputVector x2 = live && first + 512 < 1000 ? load_input(x + 512) : InputVector{};
    const InputVector x3 = live && first + 768 < 1000 ? load_input(x + 768) : InputVector{};
    const MaskVector m0 = live && first < 1000 ? load_mask(m) : MaskVector{};
    const MaskVector m1 = live && first + 256 < 1000 ? load_mask(m + 256) : MaskVector{};
    const MaskVector m2 = live && first + 512 < 1000 ? load_mask(m + 512) : MaskVector{};
    const MaskVector m3 = live && first + 768 < 1000 ? load_mask(m + 768) : MaskVector{};

    // ---- scan each access in its thread, then across the lanes of the row
    Items s0 = lift_items(x0, m0);
    Items s1 = lift_items(x1, m1);
    Items s2 = lift_items(x2, m2);
    Items s3 = lift_items(x3, m3);
    const State t0 = scan_lanes(scan_items(s0), lane);
    const State t1 = scan_lanes(scan_items(s1), lane);
    const State t2 = scan_lanes(scan_items(s2), lane);
    const State t3 = scan_lanes(scan_items(s3), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);
    const State p1 = chain_lanes(before, t1, lane);
    const State p2 = chain_lanes(before, t2, lane);
    const State p3 = chain_lanes(before, t3, lane);

    // ---- store
    if (live && first < 1000) store_items(y, p0, s0);
    if (live && first + 256 < 1000) store_items(y + 256, p1, s1);
    if (live && first + 512 < 1000) store_items(y + 512, p2, s2);
    if (live && first + 768 < 1000) store_items(y + 768, p3, s3);
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
    const long long blocks = (arguments->lines + 3) / 4;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(128);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel,
                              (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output, arguments->lines);
}
#endif
