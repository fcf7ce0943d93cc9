// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-f32-n4096-gate_f32
//          4096 float32 items, a float32 gate, float32 out
// plan     block: threads 160, items 4, tiles 1, vectors 7, boundary 0, alone False
//          a row of 4096 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 0036a1a3480ffce0 of everything below this banner
// again    scanops generate linear-f32-n4096-gate_f32 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Gate;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
};

// ---- operator linear: y[i] = g[i] * y[i-1] + x[i]
__device__ __forceinline__ bool is_zero(Value x) { return x == 0; }

__device__ __forceinline__ State identity() { return {1, 0}; }

__device__ __forceinline__ State lift(Value x, Value g) { return {g, x}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = is_zero(older.value) ? newer.value : newer.gate * older.value + newer.value;
    return s;
}

// combine where `newer` is the state of one item.
__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = newer.gate * older.value + newer.value;
    return s;
}

__device__ __forceinline__ State element(Input x, Gate g) { return lift(x, (float)(g)); }

__device__ __forceinline__ Output result(State state) { return state.value; }

// ---- 4 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
};
struct alignas(4 * sizeof(Gate)) GateVector {
    Gate item[4];
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

__device__ __forceinline__ GateVector load_gate(const Gate* first) {
    return *reinterpret_cast<const GateVector*>(first);
}

// ---- the lanes of a warp exchange accesses, so that the items of a lane are consecutive
union Exchanged {
    InputVector x;
    GateVector g;
    OutputVector y;
};

// The results of a thread's items, as accesses.
__device__ __forceinline__ void make_results(OutputVector& y0, OutputVector& y1, OutputVector& y2, OutputVector& y3, OutputVector& y4, OutputVector& y5, OutputVector& y6, State prefix, const Items& s0, const Items& s1, const Items& s2, const Items& s3, const Items& s4, const Items& s5, const Items& s6) {
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
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const GateVector& g) {
    Items s;
    s.item[0] = element(x.item[0], g.item[0]);
    s.item[1] = element(x.item[1], g.item[1]);
    s.item[2] = element(x.item[2], g.item[2]);
    s.item[3] = element(x.item[3], g.item[3]);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s0, const Items& s1, const Items& s2, const Items& s3, const Items& s4, const Items& s5, const Items& s6) {
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
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.gate, distance, 32), __shfl_up_sync(0xffffffffu, s.value, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.gate, source, 32), __shfl_sync(0xffffffffu, s.value, source, 32)};
}

__device__ __forceinline__ State pick(bool first, State a, State b) {
    return {first ? a.gate : b.gate, first ? a.value : b.value};
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

// Inclusive scan of the warps' totals across lanes, 3 steps.
__device__ __forceinline__ State scan_warps(State s, int lane) {
    State older;
    older = shuffle_up(s, 1);
    s = pick(lane >= 1, combine(older, s), s);
    older = shuffle_up(s, 2);
    s = pick(lane >= 2, combine(older, s), s);
    older = shuffle_up(s, 4);
    s = pick(lane >= 4, combine(older, s), s);
    return s;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

__global__ void __launch_bounds__(160)
scan_kernel(const Input* input, const Gate* gate, Output* output) {
    __shared__ State warp_total[5];
    __shared__ Exchanged all_exchanged[5][224];

    // ---- one row per block, 4480 item slots; a warp holds 896 of them, in 7 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 896 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 4096 + first;
    const Gate* g = gate + line * 4096 + first;
    Output* y = output + line * 4096 + first;

    // ---- load 7 x 4 items a thread
    InputVector x0 = first < 4096 ? load_input(x) : InputVector{};
    InputVector x1 = first + 128 < 4096 ? load_input(x + 128) : InputVector{};
    InputVector x2 = first + 256 < 4096 ? load_input(x + 256) : InputVector{};
    InputVector x3 = first + 384 < 4096 ? load_input(x + 384) : InputVector{};
    InputVector x4 = first + 512 < 4096 ? load_input(x + 512) : InputVector{};
    InputVector x5 = first + 640 < 4096 ? load_input(x + 640) : InputVector{};
    InputVector x6 = first + 768 < 4096 ? load_input(x + 768) : InputVector{};
    GateVector g0 = first < 4096 ? load_gate(g) : GateVector{};
    GateVector g1 = first + 128 < 4096 ? load_gate(g + 128) : GateVector{};
    GateVector g2 = first + 256 < 4096 ? load_gate(g + 256) : GateVector{};
    GateVector g3 = first + 384 < 4096 ? load_gate(g + 384) : GateVector{};
    GateVector g4 = first + 512 < 4096 ? load_gate(g + 512) : GateVector{};
    GateVector g5 = first + 640 < 4096 ? load_gate(g + 640) : GateVector{};
    GateVector g6 = first + 768 < 4096 ? load_gate(g + 768) : GateVector{};

    // ---- lanes exchange accesses: from here on a thread holds 28 consecutive items
    Exchanged* const exchanged = all_exchanged[warp];
    exchanged[lane].x = x0;
    exchanged[lane + 32].x = x1;
    exchanged[lane + 64].x = x2;
    exchanged[lane + 96].x = x3;
    exchanged[lane + 128].x = x4;
    exchanged[lane + 160].x = x5;
    exchanged[lane + 192].x = x6;
    __syncwarp();
    x0 = exchanged[lane * 7].x;
    x1 = exchanged[lane * 7 + 1].x;
    x2 = exchanged[lane * 7 + 2].x;
    x3 = exchanged[lane * 7 + 3].x;
    x4 = exchanged[lane * 7 + 4].x;
    x5 = exchanged[lane * 7 + 5].x;
    x6 = exchanged[lane * 7 + 6].x;
    __syncwarp();
    exchanged[lane].g = g0;
    exchanged[lane + 32].g = g1;
    exchanged[lane + 64].g = g2;
    exchanged[lane + 96].g = g3;
    exchanged[lane + 128].g = g4;
    exchanged[lane + 160].g = g5;
    exchanged[lane + 192].g = g6;
    __syncwarp();
    g0 = exchanged[lane * 7].g;
    g1 = exchanged[lane * 7 + 1].g;
    g2 = exchanged[lane * 7 + 2].g;
    g3 = exchanged[lane * 7 + 3].g;
    g4 = exchanged[lane * 7 + 4].g;
    g5 = exchanged[lane * 7 + 5].g;
    g6 = exchanged[lane * 7 + 6].g;

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0, g0);
    Items s1 = lift_items(x1, g1);
    Items s2 = lift_items(x2, g2);
    Items s3 = lift_items(x3, g3);
    Items s4 = lift_items(x4, g4);
    Items s5 = lift_items(x5, g5);
    Items s6 = lift_items(x6, g6);

    // ---- scan them in their thread, then across the lanes of the warp
    const State before = scan_lanes(scan_items(s0, s1, s2, s3, s4, s5, s6), lane);  // inclusive of this thread's items
    const State p = pick(lane > 0, shuffle_up(before, 1), identity());

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_warps(lane < 5 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    const State behind_all = combine(prefix, p);
    OutputVector y0, y1, y2, y3, y4, y5, y6;
    make_results(y0, y1, y2, y3, y4, y5, y6, behind_all, s0, s1, s2, s3, s4, s5, s6);
    __syncwarp();
    exchanged[lane * 7].y = y0;
    exchanged[lane * 7 + 1].y = y1;
    exchanged[lane * 7 + 2].y = y2;
    exchanged[lane * 7 + 3].y = y3;
    exchanged[lane * 7 + 4].y = y4;
    exchanged[lane * 7 + 5].y = y5;
    exchanged[lane * 7 + 6].y = y6;
    __syncwarp();
    y0 = exchanged[lane].y;
    y1 = exchanged[lane + 32].y;
    y2 = exchanged[lane + 64].y;
    y3 = exchanged[lane + 96].y;
    y4 = exchanged[lane + 128].y;
    y5 = exchanged[lane + 160].y;
    y6 = exchanged[lane + 192].y;
    if (first < 4096) *reinterpret_cast<OutputVector*>(y) = y0;
    if (first + 128 < 4096) *reinterpret_cast<OutputVector*>(y + 128) = y1;
    if (first + 256 < 4096) *reinterpret_cast<OutputVector*>(y + 256) = y2;
    if (first + 384 < 4096) *reinterpret_cast<OutputVector*>(y + 384) = y3;
    if (first + 512 < 4096) *reinterpret_cast<OutputVector*>(y + 512) = y4;
    if (first + 640 < 4096) *reinterpret_cast<OutputVector*>(y + 640) = y5;
    if (first + 768 < 4096) *reinterpret_cast<OutputVector*>(y + 768) = y6;
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
    config.blockDim = dim3(160);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Gate*)arguments->gate, (Output*)arguments->output));
}
#endif
