// scanops: y[i] = m[i] ? x[i] + s[i-1] : 0, times v[i], s[i] = (m[i] ? g[i] : 1) * (x[i] + s[i-1])
//
// spec     prod_gradient-f32-n4096-gate_f32-reverse-exclusive-again
//          4096 float32 items, a float32 gate, reverse, exclusive, again, float32 out
// plan     block: threads 352, items 4, tiles 1, vectors 3, boundary 0, alone False
//          a row of 4096 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 929f0e5cdcd8d7a2 of everything below this banner
// again    scanops generate prod_gradient-f32-n4096-gate_f32-reverse-exclusive-again --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Gate;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value Former;  // the forward scan's result before an item
struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
    Value item;
    Value before;
    int keep;
};

// ---- operator prod_gradient: y[i] = m[i] ? x[i] + s[i-1] : 0, times v[i], s[i] = (m[i] ? g[i] : 1) * (x[i] + s[i-1])
__device__ __forceinline__ State identity() { return {1, 0, 0, 0, 0}; }

__device__ __forceinline__ State lift(Value x, Value g, Value v, bool m) { return {(Value)(m ? g : 1), (Value)((m ? g : 1) * x), x, (Value)(v), (int)(m)}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = older.value == 0 ? newer.value : newer.gate * older.value + newer.value;
    s.item = newer.item;
    s.before = newer.before;
    s.keep = newer.keep;
    return s;
}

// combine where `newer` is the state of one item.
__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = newer.gate * older.value + newer.value;
    s.item = newer.item;
    s.before = newer.before;
    s.keep = newer.keep;
    return s;
}

// Combine an item with the prefix before it.
__device__ __forceinline__ State within(State before, State own) {
    before.item = own.item;
    before.before = own.before;
    before.keep = own.keep;
    return before;
}

__device__ __forceinline__ State element(Input x, Gate g, Former f) { return lift(x, (float)(g), f, true); }

__device__ __forceinline__ Output result(State state) { return state.keep ? (state.item + state.value) * state.before : 0; }

// ---- 4 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
};
struct alignas(4 * sizeof(Gate)) GateVector {
    Gate item[4];
};
struct FormerVector {  // the forward scan's prefixes
    Former item[4];
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

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[3] = result(within(prefix, s.item[0]));
    prefix = append(prefix, s.item[0]);
    y.item[2] = result(within(prefix, s.item[1]));
    prefix = append(prefix, s.item[1]);
    y.item[1] = result(within(prefix, s.item[2]));
    prefix = append(prefix, s.item[2]);
    y.item[0] = result(within(prefix, s.item[3]));
    prefix = append(prefix, s.item[3]);
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const GateVector& g, const FormerVector& f) {
    Items s;
    s.item[0] = element(x.item[3], g.item[3], f.item[3]);
    s.item[1] = element(x.item[2], g.item[2], f.item[2]);
    s.item[2] = element(x.item[1], g.item[1], f.item[1]);
    s.item[3] = element(x.item[0], g.item[0], f.item[0]);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = append(identity(), s.item[0]);
    total = append(total, s.item[1]);
    total = append(total, s.item[2]);
    total = append(total, s.item[3]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.gate, distance, 32), __shfl_up_sync(0xffffffffu, s.value, distance, 32), {}, {}, {}};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.gate, source, 32), __shfl_sync(0xffffffffu, s.value, source, 32), {}, {}, {}};
}

__device__ __forceinline__ State pick(bool first, State a, State b) {
    return {first ? a.gate : b.gate, first ? a.value : b.value, first ? a.item : b.item, first ? a.before : b.before, first ? a.keep : b.keep};
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

// The exclusive prefix of this lane's vector, given that of the row's vectors; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = pick(lane > 0, combine(before, older), before);
    before = combine(before, shuffle(inclusive, 31));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

// ---- the forward scan's prefix before each item: it runs from the last item of this scan to the first
namespace before {
typedef float Gate;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

__device__ __forceinline__ State element(Gate g) { return lift(true ? (Value)(g) : 1); }

__device__ __forceinline__ Output result(State state) { return state; }

struct Items {
    State item[4];
};

__device__ __forceinline__ Items lift_items(const GateVector& g, int ahead) {
    Items s;
    s.item[0] = ahead <= 0 ? identity() : element(g.item[3]);
    s.item[1] = ahead <= 1 ? identity() : element(g.item[2]);
    s.item[2] = ahead <= 2 ? identity() : element(g.item[1]);
    s.item[3] = ahead <= 3 ? identity() : element(g.item[0]);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = s.item[3];
    total = combine(total, s.item[2]);
    total = combine(total, s.item[1]);
    total = combine(total, s.item[0]);
    return total;
}

__device__ __forceinline__ State shuffle_down(State s, int distance) {
    return __shfl_down_sync(0xffffffffu, s, distance);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source);
}

// Inclusive scan across lanes, 5 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_down(s, 1);
    if (lane < 31) s = combine(older, s);
    older = shuffle_down(s, 2);
    if (lane < 30) s = combine(older, s);
    older = shuffle_down(s, 4);
    if (lane < 28) s = combine(older, s);
    older = shuffle_down(s, 8);
    if (lane < 24) s = combine(older, s);
    older = shuffle_down(s, 16);
    if (lane < 16) s = combine(older, s);
    return s;
}

// The exclusive prefix of this lane's access, given that of the warp's accesses; advances `ahead` past them.
__device__ __forceinline__ State chain_lanes(State& ahead, State inclusive, int lane) {
    const State older = shuffle_down(inclusive, 1);
    const State prefix = lane < 31 ? combine(ahead, older) : ahead;
    ahead = combine(ahead, shuffle(inclusive, 0));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp < 31 ? warp + 1 : 0);
    return warp < 31 ? older : identity();
}

// The result before each item.
__device__ __forceinline__ FormerVector results(State prefix, const Items& s) {
    FormerVector f;
    f.item[0] = result(prefix);
    prefix = combine(prefix, s.item[3]);
    f.item[1] = result(prefix);
    prefix = combine(prefix, s.item[2]);
    f.item[2] = result(prefix);
    prefix = combine(prefix, s.item[1]);
    f.item[3] = result(prefix);
    prefix = combine(prefix, s.item[0]);
    return f;
}
}  // namespace before

__global__ void __launch_bounds__(352)
scan_kernel(const Input* input, const Gate* gate, Output* output) {
    __shared__ State warp_total[11];
    __shared__ before::State before_total[11];

    // ---- one row per block, 4224 item slots; a warp holds 384 of them, in 3 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 384 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 4096 + (4092 - first);
    const Gate* g = gate + line * 4096 + (4092 - first);
    Output* y = output + line * 4096 + (4092 - first);

    // ---- load 3 x 4 items a thread
    InputVector x2 = first + 256 < 4096 ? load_input(x - 256) : InputVector{};
    InputVector x1 = first + 128 < 4096 ? load_input(x - 128) : InputVector{};
    InputVector x0 = first < 4096 ? load_input(x) : InputVector{};
    GateVector g2 = first + 256 < 4096 ? load_gate(g - 256) : GateVector{};
    GateVector g1 = first + 128 < 4096 ? load_gate(g - 128) : GateVector{};
    GateVector g0 = first < 4096 ? load_gate(g) : GateVector{};

    // ---- the forward scan's prefix before each item
    const before::Items b0 = before::lift_items(g0, 4096 - first);
    const before::Items b1 = before::lift_items(g1, 4096 - first - 128);
    const before::Items b2 = before::lift_items(g2, 4096 - first - 256);
    const before::State u0 = before::scan_lanes(before::scan_items(b0), lane);
    const before::State u1 = before::scan_lanes(before::scan_items(b1), lane);
    const before::State u2 = before::scan_lanes(before::scan_items(b2), lane);
    before::State ahead = before::identity();
    const before::State q2 = before::chain_lanes(ahead, u2, lane);
    const before::State q1 = before::chain_lanes(ahead, u1, lane);
    const before::State q0 = before::chain_lanes(ahead, u0, lane);
    if (lane == 0) before_total[warp] = ahead;
    __syncthreads();
    const before::State behind = before::warps_before(before::scan_lanes(lane < 11 ? before_total[lane] : before::identity(), lane), warp);
    const FormerVector f0 = before::results(before::combine(behind, q0), b0);
    const FormerVector f1 = before::results(before::combine(behind, q1), b1);
    const FormerVector f2 = before::results(before::combine(behind, q2), b2);

    // ---- lift items to states, in scan order
    Items s0 = lift_items(x0, g0, f0);
    Items s1 = lift_items(x1, g1, f1);
    Items s2 = lift_items(x2, g2, f2);

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
    const State totals = scan_lanes(lane < 11 ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);

    // ---- store
    if (first + 256 < 4096) store_items(y - 256, combine(prefix, p2), s2);
    if (first + 128 < 4096) store_items(y - 128, combine(prefix, p1), s1);
    if (first < 4096) store_items(y, combine(prefix, p0), s0);
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
    config.blockDim = dim3(352);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Gate*)arguments->gate, (Output*)arguments->output));
}
#endif
