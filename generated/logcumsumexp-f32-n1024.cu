// scanops: y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))
//
// spec     logcumsumexp-f32-n1024
//          1024 float32 items, float32 out
// plan     block: threads 32, items 4, tiles 1, vectors 8, boundary 0, alone False
//          a row of 1024 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 8295531c307cdc29 of everything below this banner
// again    scanops generate logcumsumexp-f32-n1024 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value high;
    Value rest;
};

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float exp2_of(float x) {  // to 2 ulp; subnormal results are 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

// ---- operator logcumsumexp: y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

__device__ __forceinline__ Value near_exp(Value x) { return exp2_of(x * 1.44269504f); }

__device__ __forceinline__ Value ratio(Value a, Value b) {  // exp(min(a, b) - max(a, b)); 1 for equal infinities
    return exp(a == b ? 0 : -fabs(a - b));
}

__device__ __forceinline__ Value log_of_more(Value x) {  // log(1 + x)
    const int twos = (int)((__float_as_uint(1 + x) - 0x3f400000u) & 0xff800000u);  // k, in the exponent bits of a float
    const Value unit = __uint_as_float(0x3f800000u - (unsigned)twos);
    const Value f = fma(x, unit, unit - 1);
    Value p = fma((Value)0.054131854, f, (Value)-0.12067317);
    p = fma(p, f, (Value)0.14983916);
    p = fma(p, f, (Value)-0.16822818);
    p = fma(p, f, (Value)0.19977078);
    p = fma(p, f, (Value)-0.24993442);
    p = fma(p, f, (Value)0.3333355);
    p = fma(p, f, (Value)-0.5000006);
    return fma((Value)twos, (Value)8.2629582e-8, fma(f * f, p, f));  // log(2) / 2^23
}

__device__ __forceinline__ State identity() { return {-infinity(), -1}; }

__device__ __forceinline__ State lift(Value x) { return {x, 0}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.high = fmax(older.high, newer.high);
    s.rest = fma(older.high >= newer.high ? newer.rest : older.rest, ratio(older.high, newer.high),
        (older.high >= newer.high ? older.rest : newer.rest) + ratio(older.high, newer.high));
    return s;
}

// combine where `newer` is the state of one item.
__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.high = fmax(older.high, newer.high);
    s.rest = fma(older.rest, newer.high > older.high ? ratio(older.high, newer.high) : 1,
        ratio(older.high, newer.high));
    return s;
}

// append where `older` holds a few items of the same thread: fewer instructions while the value stays in range.
__device__ __forceinline__ State extend(State older, State newer) {
    State s;
    s.high = older.high;
    s.rest = older.rest + near_exp(newer.high - older.high);
    return s;
}

__device__ __forceinline__ State behind(State older, State newer) {
    State s;
    s.high = older.rest < 0 ? newer.high : older.high;
    s.rest = fma(exp(newer.high - (older.rest < 0 ? newer.high : older.high)), newer.rest,
        older.rest + exp(newer.high - (older.rest < 0 ? newer.high : older.high)));
    return s;
}

__device__ __forceinline__ bool holds(State) { return true; }

__device__ __forceinline__ bool is_right(State state) { return state.rest < 0x1p64f; }

__device__ __forceinline__ State settle(State state) { return {state.high, state.rest}; }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state.high + log_of_more(state.rest); }

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

// ---- the lanes of a warp exchange accesses, so that the items of a lane are consecutive
union Exchanged {
    InputVector x;
    OutputVector y;
};

// Place of an access in shared memory: free of bank conflicts in either order.
__device__ __forceinline__ int access_place(int number) { return number ^ (number >> 3 & 7); }

// The results of a thread's items, as accesses.
__device__ __forceinline__ void make_results(OutputVector& y0, OutputVector& y1, OutputVector& y2, OutputVector& y3, OutputVector& y4, OutputVector& y5, OutputVector& y6, OutputVector& y7, State prefix, const Items& s0, const Items& s1, const Items& s2, const Items& s3, const Items& s4, const Items& s5, const Items& s6, const Items& s7) {
    const State sum0 = s0.item[0];
    const State sum1 = extend(sum0, s0.item[1]);
    const State sum2 = extend(sum1, s0.item[2]);
    const State sum3 = extend(sum2, s0.item[3]);
    const State sum4 = extend(sum3, s1.item[0]);
    const State sum5 = extend(sum4, s1.item[1]);
    const State sum6 = extend(sum5, s1.item[2]);
    const State sum7 = extend(sum6, s1.item[3]);
    const State sum8 = extend(sum7, s2.item[0]);
    const State sum9 = extend(sum8, s2.item[1]);
    const State sum10 = extend(sum9, s2.item[2]);
    const State sum11 = extend(sum10, s2.item[3]);
    const State sum12 = extend(sum11, s3.item[0]);
    const State sum13 = extend(sum12, s3.item[1]);
    const State sum14 = extend(sum13, s3.item[2]);
    const State sum15 = extend(sum14, s3.item[3]);
    const State sum16 = extend(sum15, s4.item[0]);
    const State sum17 = extend(sum16, s4.item[1]);
    const State sum18 = extend(sum17, s4.item[2]);
    const State sum19 = extend(sum18, s4.item[3]);
    const State sum20 = extend(sum19, s5.item[0]);
    const State sum21 = extend(sum20, s5.item[1]);
    const State sum22 = extend(sum21, s5.item[2]);
    const State sum23 = extend(sum22, s5.item[3]);
    const State sum24 = extend(sum23, s6.item[0]);
    const State sum25 = extend(sum24, s6.item[1]);
    const State sum26 = extend(sum25, s6.item[2]);
    const State sum27 = extend(sum26, s6.item[3]);
    const State sum28 = extend(sum27, s7.item[0]);
    const State sum29 = extend(sum28, s7.item[1]);
    const State sum30 = extend(sum29, s7.item[2]);
    const State sum31 = extend(sum30, s7.item[3]);
    if (is_right(behind(prefix, sum31))) {
        y0.item[0] = result(behind(prefix, sum0));
        y0.item[1] = result(behind(prefix, sum1));
        y0.item[2] = result(behind(prefix, sum2));
        y0.item[3] = result(behind(prefix, sum3));
        y1.item[0] = result(behind(prefix, sum4));
        y1.item[1] = result(behind(prefix, sum5));
        y1.item[2] = result(behind(prefix, sum6));
        y1.item[3] = result(behind(prefix, sum7));
        y2.item[0] = result(behind(prefix, sum8));
        y2.item[1] = result(behind(prefix, sum9));
        y2.item[2] = result(behind(prefix, sum10));
        y2.item[3] = result(behind(prefix, sum11));
        y3.item[0] = result(behind(prefix, sum12));
        y3.item[1] = result(behind(prefix, sum13));
        y3.item[2] = result(behind(prefix, sum14));
        y3.item[3] = result(behind(prefix, sum15));
        y4.item[0] = result(behind(prefix, sum16));
        y4.item[1] = result(behind(prefix, sum17));
        y4.item[2] = result(behind(prefix, sum18));
        y4.item[3] = result(behind(prefix, sum19));
        y5.item[0] = result(behind(prefix, sum20));
        y5.item[1] = result(behind(prefix, sum21));
        y5.item[2] = result(behind(prefix, sum22));
        y5.item[3] = result(behind(prefix, sum23));
        y6.item[0] = result(behind(prefix, sum24));
        y6.item[1] = result(behind(prefix, sum25));
        y6.item[2] = result(behind(prefix, sum26));
        y6.item[3] = result(behind(prefix, sum27));
        y7.item[0] = result(behind(prefix, sum28));
        y7.item[1] = result(behind(prefix, sum29));
        y7.item[2] = result(behind(prefix, sum30));
        y7.item[3] = result(behind(prefix, sum31));
        prefix = behind(prefix, sum31);
    } else {
        prefix = append(prefix, s0.item[0]);
        y0.item[0] = result(prefix);
        prefix = append(prefix, s0.item[1]);
        y0.item[1] = result(prefix);
        prefix = append(prefix, s0.item[2]);
        y0.item[2] = result(prefix);
        prefix = append(prefix, s0.item[3]);
        y0.item[3] = result(prefix);
        prefix = append(prefix, s1.item[0]);
        y1.item[0] = result(prefix);
        prefix = append(prefix, s1.item[1]);
        y1.item[1] = result(prefix);
        prefix = append(prefix, s1.item[2]);
        y1.item[2] = result(prefix);
        prefix = append(prefix, s1.item[3]);
        y1.item[3] = result(prefix);
        prefix = append(prefix, s2.item[0]);
        y2.item[0] = result(prefix);
        prefix = append(prefix, s2.item[1]);
        y2.item[1] = result(prefix);
        prefix = append(prefix, s2.item[2]);
        y2.item[2] = result(prefix);
        prefix = append(prefix, s2.item[3]);
        y2.item[3] = result(prefix);
        prefix = append(prefix, s3.item[0]);
        y3.item[0] = result(prefix);
        prefix = append(prefix, s3.item[1]);
        y3.item[1] = result(prefix);
        prefix = append(prefix, s3.item[2]);
        y3.item[2] = result(prefix);
        prefix = append(prefix, s3.item[3]);
        y3.item[3] = result(prefix);
        prefix = append(prefix, s4.item[0]);
        y4.item[0] = result(prefix);
        prefix = append(prefix, s4.item[1]);
        y4.item[1] = result(prefix);
        prefix = append(prefix, s4.item[2]);
        y4.item[2] = result(prefix);
        prefix = append(prefix, s4.item[3]);
        y4.item[3] = result(prefix);
        prefix = append(prefix, s5.item[0]);
        y5.item[0] = result(prefix);
        prefix = append(prefix, s5.item[1]);
        y5.item[1] = result(prefix);
        prefix = append(prefix, s5.item[2]);
        y5.item[2] = result(prefix);
        prefix = append(prefix, s5.item[3]);
        y5.item[3] = result(prefix);
        prefix = append(prefix, s6.item[0]);
        y6.item[0] = result(prefix);
        prefix = append(prefix, s6.item[1]);
        y6.item[1] = result(prefix);
        prefix = append(prefix, s6.item[2]);
        y6.item[2] = result(prefix);
        prefix = append(prefix, s6.item[3]);
        y6.item[3] = result(prefix);
        prefix = append(prefix, s7.item[0]);
        y7.item[0] = result(prefix);
        prefix = append(prefix, s7.item[1]);
        y7.item[1] = result(prefix);
        prefix = append(prefix, s7.item[2]);
        y7.item[2] = result(prefix);
        prefix = append(prefix, s7.item[3]);
        y7.item[3] = result(prefix);

    }
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    s.item[1] = element(x.item[1]);
    s.item[2] = element(x.item[2]);
    s.item[3] = element(x.item[3]);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s0, const Items& s1, const Items& s2, const Items& s3, const Items& s4, const Items& s5, const Items& s6, const Items& s7) {
    State sum = s0.item[0];
    bool right = holds(sum);
    sum = extend(sum, s0.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s0.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s0.item[3]);
    right = right && holds(sum);
    sum = extend(sum, s1.item[0]);
    right = right && holds(sum);
    sum = extend(sum, s1.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s1.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s1.item[3]);
    right = right && holds(sum);
    sum = extend(sum, s2.item[0]);
    right = right && holds(sum);
    sum = extend(sum, s2.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s2.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s2.item[3]);
    right = right && holds(sum);
    sum = extend(sum, s3.item[0]);
    right = right && holds(sum);
    sum = extend(sum, s3.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s3.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s3.item[3]);
    right = right && holds(sum);
    sum = extend(sum, s4.item[0]);
    right = right && holds(sum);
    sum = extend(sum, s4.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s4.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s4.item[3]);
    right = right && holds(sum);
    sum = extend(sum, s5.item[0]);
    right = right && holds(sum);
    sum = extend(sum, s5.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s5.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s5.item[3]);
    right = right && holds(sum);
    sum = extend(sum, s6.item[0]);
    right = right && holds(sum);
    sum = extend(sum, s6.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s6.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s6.item[3]);
    right = right && holds(sum);
    sum = extend(sum, s7.item[0]);
    right = right && holds(sum);
    sum = extend(sum, s7.item[1]);
    right = right && holds(sum);
    sum = extend(sum, s7.item[2]);
    right = right && holds(sum);
    sum = extend(sum, s7.item[3]);
    right = right && is_right(sum);
    if (right) return settle(sum);
    State total = append(identity(), s0.item[0]);
    total = append(total, s0.item[1]);
    total = append(total, s0.item[2]);
    total = append(total, s0.item[3]);
    total = append(total, s1.item[0]);
    total = append(total, s1.item[1]);
    total = append(total, s1.item[2]);
    total = append(total, s1.item[3]);
    total = append(total, s2.item[0]);
    total = append(total, s2.item[1]);
    total = append(total, s2.item[2]);
    total = append(total, s2.item[3]);
    total = append(total, s3.item[0]);
    total = append(total, s3.item[1]);
    total = append(total, s3.item[2]);
    total = append(total, s3.item[3]);
    total = append(total, s4.item[0]);
    total = append(total, s4.item[1]);
    total = append(total, s4.item[2]);
    total = append(total, s4.item[3]);
    total = append(total, s5.item[0]);
    total = append(total, s5.item[1]);
    total = append(total, s5.item[2]);
    total = append(total, s5.item[3]);
    total = append(total, s6.item[0]);
    total = append(total, s6.item[1]);
    total = append(total, s6.item[2]);
    total = append(total, s6.item[3]);
    total = append(total, s7.item[0]);
    total = append(total, s7.item[1]);
    total = append(total, s7.item[2]);
    total = append(total, s7.item[3]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.high, distance, 32), __shfl_up_sync(0xffffffffu, s.rest, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.high, source, 32), __shfl_sync(0xffffffffu, s.rest, source, 32)};
}

__device__ __forceinline__ State pick(bool first, State a, State b) {
    return {first ? a.high : b.high, first ? a.rest : b.rest};
}

// Inclusive scan across lanes, 5 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_up(s, 1);
    s = pick(lane >= 1, combine(older, s), s);
    older = shuffle_up(s, 2);
    s = pick(lane >= 2, combine(older, s), s);
    older = shuffle_up(s, 4);
    s = pick(lane >= 4, combine(older, s), s);
    older = shuffle_up(s, 8);
    s = pick(lane >= 8, combine(older, s), s);
    older = shuffle_up(s, 16);
    s = pick(lane >= 16, combine(older, s), s);
    return s;
}

// Inclusive scan of the warps' totals across lanes, 0 steps.
__device__ __forceinline__ State scan_warps(State s, int lane) {
    State older;
    return s;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

__global__ void __launch_bounds__(32)
scan_kernel(const Input* input, Output* output) {
    __shared__ State warp_total[1];
    __shared__ Exchanged all_exchanged[1][256];

    // ---- one row per block, 1024 item slots; a warp holds 1024 of them, in 8 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 1024 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 1024 + first;
    Output* y = output + line * 1024 + first;

    // ---- load 8 x 4 items a thread
    InputVector x0 = load_input(x);
    InputVector x1 = load_input(x + 128);
    InputVector x2 = load_input(x + 256);
    InputVector x3 = load_input(x + 384);
    InputVector x4 = load_input(x + 512);
    InputVector x5 = load_input(x + 640);
    InputVector x6 = load_input(x + 768);
    InputVector x7 = load_input(x + 896);

    // ---- lanes exchange accesses: from here on a thread holds 32 consecutive items
    Exchanged* const exchanged = all_exchanged[warp];
    exchanged[access_place(lane)].x = x0;
    exchanged[access_place(lane + 32)].x = x1;
    exchanged[access_place(lane + 64)].x = x2;
    exchanged[access_place(lane + 96)].x = x3;
    exchanged[access_place(lane + 128)].x = x4;
    exchanged[access_place(lane + 160)].x = x5;
    exchanged[access_place(lane + 192)].x = x6;
    exchanged[access_place(lane + 224)].x = x7;
    __syncwarp();
    x0 = exchanged[access_place(lane * 8)].x;
    x1 = exchanged[access_place(lane * 8 + 1)].x;
    x2 = exchanged[access_place(lane * 8 + 2)].x;
    x3 = exchanged[access_place(lane * 8 + 3)].x;
    x4 = exchanged[access_place(lane * 8 + 4)].x;
    x5 = exchanged[access_place(lane * 8 + 5)].x;
    x6 = exchanged[access_place(lane * 8 + 6)].x;
    x7 = exchanged[access_place(lane * 8 + 7)].x;

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0);
    Items s1 = lift_items(x1);
    Items s2 = lift_items(x2);
    Items s3 = lift_items(x3);
    Items s4 = lift_items(x4);
    Items s5 = lift_items(x5);
    Items s6 = lift_items(x6);
    Items s7 = lift_items(x7);

    // ---- scan them in their thread, then across the lanes of the warp
    const State before = scan_lanes(scan_items(s0, s1, s2, s3, s4, s5, s6, s7), lane);  // inclusive of this thread's items
    const State p = pick(lane > 0, shuffle_up(before, 1), identity());

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_warps(lane < 1 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    const State behind_all = combine(prefix, p);
    OutputVector y0, y1, y2, y3, y4, y5, y6, y7;
    make_results(y0, y1, y2, y3, y4, y5, y6, y7, behind_all, s0, s1, s2, s3, s4, s5, s6, s7);
    __syncwarp();
    exchanged[access_place(lane * 8)].y = y0;
    exchanged[access_place(lane * 8 + 1)].y = y1;
    exchanged[access_place(lane * 8 + 2)].y = y2;
    exchanged[access_place(lane * 8 + 3)].y = y3;
    exchanged[access_place(lane * 8 + 4)].y = y4;
    exchanged[access_place(lane * 8 + 5)].y = y5;
    exchanged[access_place(lane * 8 + 6)].y = y6;
    exchanged[access_place(lane * 8 + 7)].y = y7;
    __syncwarp();
    y0 = exchanged[access_place(lane)].y;
    y1 = exchanged[access_place(lane + 32)].y;
    y2 = exchanged[access_place(lane + 64)].y;
    y3 = exchanged[access_place(lane + 96)].y;
    y4 = exchanged[access_place(lane + 128)].y;
    y5 = exchanged[access_place(lane + 160)].y;
    y6 = exchanged[access_place(lane + 192)].y;
    y7 = exchanged[access_place(lane + 224)].y;
    *reinterpret_cast<OutputVector*>(y) = y0;
    *reinterpret_cast<OutputVector*>(y + 128) = y1;
    *reinterpret_cast<OutputVector*>(y + 256) = y2;
    *reinterpret_cast<OutputVector*>(y + 384) = y3;
    *reinterpret_cast<OutputVector*>(y + 512) = y4;
    *reinterpret_cast<OutputVector*>(y + 640) = y5;
    *reinterpret_cast<OutputVector*>(y + 768) = y6;
    *reinterpret_cast<OutputVector*>(y + 896) = y7;
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
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
