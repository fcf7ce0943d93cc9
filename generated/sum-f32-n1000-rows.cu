// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n1000-rows
//          1000 float32 items, rows, float32 out
// plan     block: threads 128, items 4, tiles 1, vectors 2, boundary 0, alone False
//          a row of 1000 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 b79ded7e10119fda of everything below this banner
// again    scanops generate sum-f32-n1000-rows --target sm_90

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

// ---- misaligned rows: accesses stay on boundaries and overlap both ends of a row
__device__ __forceinline__ bool is_inside(int position) { return (unsigned)position < 1000; }

__device__ __forceinline__ bool is_whole(int position) { return (unsigned)position <= 996; }

__device__ __forceinline__ InputVector load_input(const Input* first, int position) {
    if (is_whole(position)) return *reinterpret_cast<const InputVector*>(first);
    InputVector vector = {};
    if (is_inside(position)) vector.item[0] = first[0];
    if (is_inside(position + 1)) vector.item[1] = first[1];
    if (is_inside(position + 2)) vector.item[2] = first[2];
    if (is_inside(position + 3)) vector.item[3] = first[3];
    return vector;
}

// The access after a lane's own is the next lane's; the first lane holds `later`, the last lane's.
__device__ __forceinline__ InputVector next_input(const InputVector& own, const InputVector& later, int lane) {
    InputVector next = own;
    next.item[0] = __shfl_sync(0xffffffffu, lane > 0 ? own.item[0] : later.item[0], lane + 1, 32);
    next.item[1] = __shfl_sync(0xffffffffu, lane > 0 ? own.item[1] : later.item[1], lane + 1, 32);
    next.item[2] = __shfl_sync(0xffffffffu, lane > 0 ? own.item[2] : later.item[2], lane + 1, 32);
    return next;
}

// The items of one output access: those of an access from the skew on, then the first of the next access.
__device__ __forceinline__ InputVector realign_input(const InputVector& access, const InputVector& next, int skew) {
    Input w[] = {access.item[0], access.item[1], access.item[2], access.item[3], next.item[0], next.item[1], next.item[2]};
    if (skew & 2) w[0] = w[2], w[1] = w[3], w[2] = w[4], w[3] = w[5], w[4] = w[6];
    if (skew & 1) w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = w[4];
    return {{w[0], w[1], w[2], w[3]}};
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

// ---- operands with strides: sizes and strides, in items, of the dimensions that are not scanned
struct Geometry {
    int rank;
    long long size[24];
    long long input_stride[24];
    long long mask_stride[24];
    long long gate_stride[24];
    long long starts_stride[24];
    long long input_step;  // stride of the scanned dimension
    long long mask_step;
    long long gate_step;
    long long starts_step;
};

__device__ __forceinline__ long long line_offset(long long line, int rank, const long long* size,
                                                 const long long* stride) {
    long long offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
        offset += line % size[d] * stride[d];
        line /= size[d];
    }
    return offset;
}

__global__ void __launch_bounds__(128, 1)
scan_kernel(const Input* input, Output* output,
            const __grid_constant__ Geometry geometry) {
    __shared__ State warp_total[4];

    // ---- one row per block, 1024 item slots; a warp holds 256 of them, in 2 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 256 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line_offset(line, geometry.rank, geometry.size, geometry.input_stride)
        + first;
    const int x_skew = (int)((size_t)x / sizeof(Input)) & 3;  // items after a 16-byte boundary
    x -= x_skew;
    const int x_first = first - x_skew;  // scan position of the first item read
    Output* y = output + line * 1000 + first;

    // ---- load 2 x 4 items a thread
    InputVector x0 = load_input(x, x_first);
    InputVector x1 = load_input(x + 128, x_first + 128);
    InputVector x2 = lane == 0 && x_skew > 0 ? load_input(x + 256, x_first + 256) : InputVector{};

    // ---- lift items to states, in scan order
    Items s0 = lift_items(realign_input(x0, next_input(x0, x1, lane), x_skew));
    Items s1 = lift_items(realign_input(x1, next_input(x1, x2, lane), x_skew));

    // ---- scan each access in its thread, then across the lanes of the warp
    const State t0 = scan_lanes(scan_items(s0), lane);
    const State t1 = scan_lanes(scan_items(s1), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);
    const State p1 = chain_lanes(before, t1, lane);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes(lane < 4 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    if (first < 1000) store_items(y, combine(prefix, p0), s0);
    if (first + 128 < 1000) store_items(y + 128, combine(prefix, p1), s1);
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
    Geometry geometry;
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
    config.blockDim = dim3(128);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->geometry));
}
#endif
