// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-f32-n4096-gate_f32
//          4096 float32 items, a float32 gate, float32 out
// plan     block: threads 352, items 4, tiles 1, vectors 3, boundary 0, alone False
//          a row of 4096 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 dbfe6afe09f7c137 of everything below this banner
// again    scanops generate linear-f32-n4096-gate_f32 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Gate;  // float32
typedef float Output;  // float32
typedef float Value;  // what elements are computed in
struct State {  // what a stretch of elements amounts to
    Value gate;
    int power;
    Value value;
};

// ---- operator linear: y[i] = g[i] * y[i-1] + x[i]
__device__ __forceinline__ Value mantissa(Value x) {  // of what is no power of 2 times one, x itself
    const unsigned bits = __float_as_uint(x), field = bits >> 23 & 255;  // of the exponent
    return field - 1 < 254 ? __uint_as_float(bits & 0x807fffffu | 0x3f000000u) : x;
}

__device__ __forceinline__ int exponent(Value x) {
    const unsigned field = __float_as_uint(x) >> 23 & 255;
    return field - 1 < 254 ? (int)field - 126 : 0;
}

__device__ __forceinline__ Value settled(Value x) { return fabs(x) < (Value)0.5 ? x + x : x; }

__device__ __forceinline__ int unsettled(Value x) { return fabs(x) < (Value)0.5 ? -1 : 0; }

__device__ __forceinline__ int bounded(int power) { return power < -65536 ? -65536 : power > 65536 ? 65536 : power; }

__device__ __forceinline__ Value scaled(Value x, int power) {  // in three steps: 2^power may be out of range
    power = power < -375 ? -375 : power > 375 ? 375 : power;
    const int third = power / 3;
    const Value step = __uint_as_float((third + 127u) << 23);
    return x * step * step * __uint_as_float((power - 2 * third + 127u) << 23);
}

__device__ __forceinline__ State identity() { return {1, 0, 0}; }

__device__ __forceinline__ State lift(Value x, Value g) { return {g, 0, x}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.gate = settled(older.gate * newer.gate);
    s.power = bounded(older.power + newer.power + unsettled(older.gate * newer.gate));
    s.value = scaled(newer.gate * older.value, newer.power) + newer.value;
    return s;
}

// The same where newer is one element.
__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.gate = mantissa(older.gate * newer.gate);
    s.power = bounded(older.power + exponent(older.gate * newer.gate));
    s.value = newer.gate * older.value + newer.value;
    return s;
}

__device__ __forceinline__ State element(Input x, Gate g) { return lift(x, (float)(g)); }

__device__ __forceinline__ Output result(State state) { return state.value; }

// ---- 4 items: as one access reads or writes them, and as states in scan order
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

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    prefix = append(prefix, s.item[0]);
    y.item[0] = result(prefix);
    prefix = append(prefix, s.item[1]);
    y.item[1] = result(prefix);
    prefix = append(prefix, s.item[2]);
    y.item[2] = result(prefix);
    prefix = append(prefix, s.item[3]);
    y.item[3] = result(prefix);
    *reinterpret_cast<OutputVector*>(first) = y;
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
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = append(identity(), s.item[0]);
    total = append(total, s.item[1]);
    total = append(total, s.item[2]);
    total = append(total, s.item[3]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.gate, distance, 32), __shfl_up_sync(0xffffffffu, s.power, distance, 32), __shfl_up_sync(0xffffffffu, s.value, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.gate, source, 32), __shfl_sync(0xffffffffu, s.power, source, 32), __shfl_sync(0xffffffffu, s.value, source, 32)};
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

__global__ void __launch_bounds__(352)
scan_kernel(const Input* input, const Gate* gate, Output* output) {
    __shared__ State warp_total[11];

    // ---- a block holds a row in 4224 places; a warp has 384 of them, in 3 stripes
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int first = warp * 384 + lane * 4;  // the scan position of this thread's first item
    const Input* x = input + line * 4096 + first;
    const Gate* g = gate + line * 4096 + first;
    Output* y = output + line * 4096 + first;

    // ---- load 3 x 4 items a thread
    InputVector x0 = first < 4096 ? load_input(x) : InputVector{};
    InputVector x1 = first + 128 < 4096 ? load_input(x + 128) : InputVector{};
    InputVector x2 = first + 256 < 4096 ? load_input(x + 256) : InputVector{};
    GateVector g0 = first < 4096 ? load_gate(g) : GateVector{};
    GateVector g1 = first + 128 < 4096 ? load_gate(g + 128) : GateVector{};
    GateVector g2 = first + 256 < 4096 ? load_gate(g + 256) : GateVector{};

    // ---- items become states, in scan order
    Items s0 = lift_items(x0, g0);
    Items s1 = lift_items(x1, g1);
    Items s2 = lift_items(x2, g2);

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
    if (first < 4096) store_items(y, combine(prefix, p0), s0);
    if (first + 128 < 4096) store_items(y + 128, combine(prefix, p1), s1);
    if (first + 256 < 4096) store_items(y + 256, combine(prefix, p2), s2);
}

#ifndef __CUDACC_RTC__  // the host's side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    const void* gate;
    const void* starts;  // flags
    void* output;
    void* indices;
    const void* carry_in;
    void* carry_out;
    const void* offsets;  // of segments
    void* workspace;
    long long carry_in_step;  // from the result carried in for a line to that for the next
    long long segments;
    long long lines;   // scanned sequences
    long long length;  // of each: for kernels that take it
    int multiprocessors;
};

extern "C" int scanops_abi() { return 3; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

extern "C" long long scanops_workspace_bytes(long long, long long) { return 0; }

// An error is told once, to the caller: cleared here, it does not surface at somebody else's next call.
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
