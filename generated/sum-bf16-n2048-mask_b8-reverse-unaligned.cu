// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-bf16-n2048-mask_b8-reverse-unaligned
//          2048 bfloat16 items, the bool mask selects, reverse, unaligned, bfloat16 out
// plan     block: threads 96, items 8, tiles 1, vectors 3, boundary 64, alone False
//          a row of 2048 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 4a60522abec9d03b of everything below this banner
// again    scanops generate sum-bf16-n2048-mask_b8-reverse-unaligned --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef unsigned char Mask;  // bool
typedef unsigned short Output;  // bfloat16
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

// A masked-out item counts as the identity, whatever its value.
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift(bfloat_to_float(x)) : identity(); }

__device__ __forceinline__ Output result(State state) { return float_to_bfloat(state); }

// ---- 8 items: as one vectorised access loads or stores them, and as states in scan order
union alignas(8 * sizeof(Input)) InputVector {
    unsigned word[4];
    Input item[8];
};
union alignas(8 * sizeof(Mask)) MaskVector {
    unsigned word[2];
    Mask item[8];
};
struct alignas(8 * sizeof(Output)) OutputVector {
    Output item[8];
};
struct Items {
    State item[8];
};

// ---- misaligned rows: accesses stay on boundaries of 64 items and overlap both ends of a row
__device__ __forceinline__ bool is_inside(int position) { return (unsigned)position < 2048; }

__device__ __forceinline__ bool is_whole(int position) { return (unsigned)position <= 2040; }

__device__ __forceinline__ InputVector load_input(const Input* first, int position) {
    if (is_whole(position)) return *reinterpret_cast<const InputVector*>(first);
    InputVector vector = {};
    if (is_inside(position + 7)) vector.item[0] = first[0];
    if (is_inside(position + 6)) vector.item[1] = first[1];
    if (is_inside(position + 5)) vector.item[2] = first[2];
    if (is_inside(position + 4)) vector.item[3] = first[3];
    if (is_inside(position + 3)) vector.item[4] = first[4];
    if (is_inside(position + 2)) vector.item[5] = first[5];
    if (is_inside(position + 1)) vector.item[6] = first[6];
    if (is_inside(position)) vector.item[7] = first[7];
    return vector;
}

// The access after a lane's own is the next lane's; the first lane holds `later`, the last lane's.
__device__ __forceinline__ InputVector next_input(const InputVector& own, const InputVector& later, int lane) {
    InputVector next = own;
    next.word[3] = __shfl_sync(0xffffffffu, lane > 0 ? own.word[3] : later.word[3], lane + 1, 32);
    next.word[2] = __shfl_sync(0xffffffffu, lane > 0 ? own.word[2] : later.word[2], lane + 1, 32);
    next.word[1] = __shfl_sync(0xffffffffu, lane > 0 ? own.word[1] : later.word[1], lane + 1, 32);
    next.word[0] = __shfl_sync(0xffffffffu, lane > 0 ? own.word[0] : later.word[0], lane + 1, 32);
    return next;
}

// The items of one output access: those of an access from the skew on, then the first of the next access.
__device__ __forceinline__ InputVector realign_input(const InputVector& access, const InputVector& next, int skew) {
    unsigned w[] = {access.word[3], access.word[2], access.word[1], access.word[0], next.word[3], next.word[2], next.word[1], next.word[0]};
    if (skew & 4) w[0] = w[2], w[1] = w[3], w[2] = w[4], w[3] = w[5], w[4] = w[6], w[5] = w[7];
    if (skew & 2) w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = w[4], w[4] = w[5];
    return {{__funnelshift_l(w[4], w[3], 16 * skew), __funnelshift_l(w[3], w[2], 16 * skew), __funnelshift_l(w[2], w[1], 16 * skew), __funnelshift_l(w[1], w[0], 16 * skew)}};
}

__device__ __forceinline__ MaskVector load_mask(const Mask* first, int position) {
    if (is_whole(position)) return *reinterpret_cast<const MaskVector*>(first);
    MaskVector vector = {};
    if (is_inside(position + 7)) vector.item[0] = first[0];
    if (is_inside(position + 6)) vector.item[1] = first[1];
    if (is_inside(position + 5)) vector.item[2] = first[2];
    if (is_inside(position + 4)) vector.item[3] = first[3];
    if (is_inside(position + 3)) vector.item[4] = first[4];
    if (is_inside(position + 2)) vector.item[5] = first[5];
    if (is_inside(position + 1)) vector.item[6] = first[6];
    if (is_inside(position)) vector.item[7] = first[7];
    return vector;
}

// The access after a lane's own is the next lane's; the first lane holds `later`, the last lane's.
__device__ __forceinline__ MaskVector next_mask(const MaskVector& own, const MaskVector& later, int lane) {
    MaskVector next = own;
    next.word[1] = __shfl_sync(0xffffffffu, lane > 0 ? own.word[1] : later.word[1], lane + 1, 32);
    next.word[0] = __shfl_sync(0xffffffffu, lane > 0 ? own.word[0] : later.word[0], lane + 1, 32);
    return next;
}

// The items of one output access: those of an access from the skew on, then the first of the next access.
__device__ __forceinline__ MaskVector realign_mask(const MaskVector& access, const MaskVector& next, int skew) {
    unsigned w[] = {access.word[1], access.word[0], next.word[1], next.word[0]};
    if (skew & 4) w[0] = w[1], w[1] = w[2], w[2] = w[3];
    return {{__funnelshift_l(w[2], w[1], 8 * skew), __funnelshift_l(w[1], w[0], 8 * skew)}};
}

__device__ __forceinline__ void store_items(Output* first, int position, State prefix, const Items& s) {
    OutputVector y;
    y.item[7] = result(combine(prefix, s.item[0]));
    y.item[6] = result(combine(prefix, s.item[1]));
    y.item[5] = result(combine(prefix, s.item[2]));
    y.item[4] = result(combine(prefix, s.item[3]));
    y.item[3] = result(combine(prefix, s.item[4]));
    y.item[2] = result(combine(prefix, s.item[5]));
    y.item[1] = result(combine(prefix, s.item[6]));
    y.item[0] = result(combine(prefix, s.item[7]));
    if (is_whole(position)) {
        *reinterpret_cast<OutputVector*>(first) = y;
        return;
    }
    if (is_inside(position + 7)) first[0] = y.item[0];
    if (is_inside(position + 6)) first[1] = y.item[1];
    if (is_inside(position + 5)) first[2] = y.item[2];
    if (is_inside(position + 4)) first[3] = y.item[3];
    if (is_inside(position + 3)) first[4] = y.item[4];
    if (is_inside(position + 2)) first[5] = y.item[5];
    if (is_inside(position + 1)) first[6] = y.item[6];
    if (is_inside(position)) first[7] = y.item[7];
}

// Items before the row's first are ignored.
__device__ __forceinline__ void begin_row(Items& s, int position) {
    if (position < 0) s.item[0] = identity();
    if (position < -1) s.item[1] = identity();
    if (position < -2) s.item[2] = identity();
    if (position < -3) s.item[3] = identity();
    if (position < -4) s.item[4] = identity();
    if (position < -5) s.item[5] = identity();
    if (position < -6) s.item[6] = identity();
    if (position < -7) s.item[7] = identity();
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const MaskVector& m) {
    Items s;
    s.item[0] = element(x.item[7], m.item[7]);
    s.item[1] = element(x.item[6], m.item[6]);
    s.item[2] = element(x.item[5], m.item[5]);
    s.item[3] = element(x.item[4], m.item[4]);
    s.item[4] = element(x.item[3], m.item[3]);
    s.item[5] = element(x.item[2], m.item[2]);
    s.item[6] = element(x.item[1], m.item[1]);
    s.item[7] = element(x.item[0], m.item[0]);
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

__global__ void __launch_bounds__(96)
scan_kernel(const Input* input, const Mask* mask, Output* output) {
    __shared__ State warp_total[3];

    // ---- one row per block, 2304 item slots; a warp holds 768 of them, in 3 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int lead = (int)(-((line + 1) * 2048 + (long long)((size_t)output / sizeof(Output))) & 63);  // items between a boundary and the row's first
    const int first = warp * 768 + lane * 8 - lead;  // the scan position of this thread's first item
    const Input* x = input + line * 2048 + (2040 - first);
    const int x_skew = -(int)((size_t)x / sizeof(Input)) & 7;  // items after a 16-byte boundary
    x += x_skew;
    const int x_first = first - x_skew;  // scan position of the first item read
    const Mask* m = mask + line * 2048 + (2040 - first);
    const int m_skew = -(int)((size_t)m / sizeof(Mask)) & 7;  // items after a 16-byte boundary
    m += m_skew;
    const int m_first = first - m_skew;  // scan position of the first item read
    Output* y = output + line * 2048 + (2040 - first);

    // ---- load 3 x 8 items a thread
    InputVector x3 = lane == 0 && x_skew > 0 ? load_input(x - 768, x_first + 768) : InputVector{};
    InputVector x2 = load_input(x - 512, x_first + 512);
    InputVector x1 = load_input(x - 256, x_first + 256);
    InputVector x0 = load_input(x, x_first);
    MaskVector m3 = lane == 0 && m_skew > 0 ? load_mask(m - 768, m_first + 768) : MaskVector{};
    MaskVector m2 = load_mask(m - 512, m_first + 512);
    MaskVector m1 = load_mask(m - 256, m_first + 256);
    MaskVector m0 = load_mask(m, m_first);

    // ---- lift items to states, in scan order
    Items s0 = lift_items(realign_input(x0, next_input(x0, x1, lane), x_skew), realign_mask(m0, next_mask(m0, m1, lane), m_skew));
    Items s1 = lift_items(realign_input(x1, next_input(x1, x2, lane), x_skew), realign_mask(m1, next_mask(m1, m2, lane), m_skew));
    Items s2 = lift_items(realign_input(x2, next_input(x2, x3, lane), x_skew), realign_mask(m2, next_mask(m2, m3, lane), m_skew));
    begin_row(s0, first);

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
    const State totals = scan_lanes(lane < 3 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    store_items(y - 512, first + 512, combine(prefix, p2), s2);
    store_items(y - 256, first + 256, combine(prefix, p1), s1);
    store_items(y, first, combine(prefix, p0), s0);
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
    config.blockDim = dim3(96);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output));
}
#endif
