// scanops: y[i] = m[i] ? x[0] * exp(g[i] - v[0]) + ... + x[i] * exp(g[i] - v[i]) : 0
//
// spec     logcumsumexp_gradient-f32-n1000-inner64-mask_b8-gate_f32-saved_f32-reverse
//          1000 float32 items of stride 64, the bool mask is passed on, a float32 gate, saved float32 items, reverse, float32 out
// plan     columns: threads 512, items 2, tiles 8, columns 32, vector 4, apart False, stages 2, blocks 1
//          the scanned dimension has stride 64: 32 neighbouring columns per block
// target   sm_90
// content  sha256 bea0c10f0a957ecf of everything below this banner
// again    scanops generate logcumsumexp_gradient-f32-n1000-inner64-mask_b8-gate_f32-saved_f32-reverse --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef unsigned char Mask;  // bool
typedef float Gate;  // float32
typedef float Saved;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value high;
    Value value;
    Value item;
    int keep;
};

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float exp2_of(float x) {  // to 2 ulp; subnormal results are 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                                      \
    extern __shared__ __align__(16) unsigned char name##_bytes[];         \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)

// Asynchronous global-to-shared copies (cp.async).
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_8(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// copy_async_16 with L1 bypass (cp.async.cg).
__device__ __forceinline__ void copy_stream_16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

#endif

// ---- operator logcumsumexp_gradient: y[i] = m[i] ? x[0] * exp(g[i] - v[0]) + ... + x[i] * exp(g[i] - v[i]) : 0
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

__device__ __forceinline__ Value near_exp(Value x) { return exp2_of(x * 1.44269504f); }

__device__ __forceinline__ State identity() { return {infinity(), 0, 0, 0}; }

__device__ __forceinline__ State lift(Value x, Value g, Value v, bool m) { return {(Value)(v), x, g, (int)(m)}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.high = newer.high == infinity() ? older.high : newer.high;
    s.value = newer.value + older.value * (newer.high == infinity() || newer.high == older.high ? 1 : near_exp(newer.high - older.high));
    s.item = newer.item;
    s.keep = newer.keep;
    return s;
}

// combine where `newer` is the state of one item.
__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.high = newer.high;
    s.value = newer.value + older.value * (newer.high == older.high ? 1 : near_exp(newer.high - older.high));
    s.item = newer.item;
    s.keep = newer.keep;
    return s;
}

__device__ __forceinline__ State element(Input x, Mask m, Gate g, Saved v) { return lift(x, (float)(g), (float)(v), m); }

__device__ __forceinline__ Output result(State state) { return state.keep && state.item != -infinity()
        ? state.value * (state.item == state.high ? 1 : near_exp(state.item - state.high)) : 0; }

// ---- 4 columns of a row, as one access reads or writes them; and 2 rows of them
struct alignas(16) InputVector {
    Input column[4];
};
struct InputRows {
    InputVector row[2];
};
struct alignas(4) MaskVector {
    Mask column[4];
};
struct MaskRows {
    MaskVector row[2];
};
struct alignas(16) GateVector {
    Gate column[4];
};
struct GateRows {
    GateVector row[2];
};
struct alignas(16) SavedVector {
    Saved column[4];
};
struct SavedRows {
    SavedVector row[2];
};
struct alignas(16) OutputVector {
    Output column[4];
};
struct alignas(16) States {  // one per column
    State column[4];
};
struct Items {
    States row[2];
};
struct Ring {  // multistage ring of tiles, by stage, row and thread: a thread reads what it copied, so no barrier is needed
    InputVector x[2][2][512];
    MaskVector m[2][2][512];
    GateVector g[2][2][512];
    SavedVector v[2][2][512];
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    s.column[1] = identity();
    s.column[2] = identity();
    s.column[3] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    s.column[1] = combine(older.column[1], newer.column[1]);
    s.column[2] = combine(older.column[2], newer.column[2]);
    s.column[3] = combine(older.column[3], newer.column[3]);
    return s;
}

__device__ __forceinline__ States append_each(const States& older, const States& newer) {
    States s;
    s.column[0] = append(older.column[0], newer.column[0]);
    s.column[1] = append(older.column[1], newer.column[1]);
    s.column[2] = append(older.column[2], newer.column[2]);
    s.column[3] = append(older.column[3], newer.column[3]);
    return s;
}

__device__ __forceinline__ InputRows load_input(const InputVector* slot) {
    InputRows rows;
    rows.row[0] = slot[0];
    rows.row[1] = slot[512];
    return rows;
}

__device__ __forceinline__ MaskRows load_mask(const MaskVector* slot) {
    MaskRows rows;
    rows.row[0] = slot[0];
    rows.row[1] = slot[512];
    return rows;
}

__device__ __forceinline__ GateRows load_gate(const GateVector* slot) {
    GateRows rows;
    rows.row[0] = slot[0];
    rows.row[1] = slot[512];
    return rows;
}

__device__ __forceinline__ SavedRows load_saved(const SavedVector* slot) {
    SavedRows rows;
    rows.row[0] = slot[0];
    rows.row[1] = slot[512];
    return rows;
}

__device__ __forceinline__ void copy_input(InputVector* slot, const Input* first, long long step, int live) {
    if (live > 0) copy_stream_16(slot, first);
    if (live > 1) copy_stream_16(slot + 512, first + 1 * step);
}

__device__ __forceinline__ void copy_mask(MaskVector* slot, const Mask* first, long long step, int live) {
    if (live > 0) copy_async_4(slot, first);
    if (live > 1) copy_async_4(slot + 512, first + 1 * step);
}

__device__ __forceinline__ void copy_gate(GateVector* slot, const Gate* first, long long step, int live) {
    if (live > 0) copy_stream_16(slot, first);
    if (live > 1) copy_stream_16(slot + 512, first + 1 * step);
}

__device__ __forceinline__ void copy_saved(SavedVector* slot, const Saved* first, long long step, int live) {
    if (live > 0) copy_stream_16(slot, first);
    if (live > 1) copy_stream_16(slot + 512, first + 1 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    y.column[2] = result(s.column[2]);
    y.column[3] = result(s.column[3]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, int live, States prefix, const Items& s) {
    prefix = append_each(prefix, s.row[0]);
    if (live > 0) *reinterpret_cast<OutputVector*>(first) = results(prefix);
    prefix = append_each(prefix, s.row[1]);
    if (live > 1) *reinterpret_cast<OutputVector*>(first + 1 * step) = results(prefix);
}

__device__ __forceinline__ States lift_row(const InputVector& x, const MaskVector& m, const GateVector& g, const SavedVector& v) {
    States s;
    s.column[0] = element(x.column[0], m.column[0], g.column[0], v.column[0]);
    s.column[1] = element(x.column[1], m.column[1], g.column[1], v.column[1]);
    s.column[2] = element(x.column[2], m.column[2], g.column[2], v.column[2]);
    s.column[3] = element(x.column[3], m.column[3], g.column[3], v.column[3]);
    return s;
}

__device__ __forceinline__ Items lift_items(const InputRows& x, const MaskRows& m, const GateRows& g, const SavedRows& v) {
    Items s;
    s.row[0] = lift_row(x.row[0], m.row[0], g.row[0], v.row[0]);
    s.row[1] = lift_row(x.row[1], m.row[1], g.row[1], v.row[1]);
    return s;
}

// The total of the rows, per column.
__device__ __forceinline__ States scan_items(const Items& s) {
    States total = append_each(identities(), s.row[0]);
    total = append_each(total, s.row[1]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.high, distance, 32), __shfl_up_sync(0xffffffffu, s.value, distance, 32), {}, {}};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.high, source, 32), __shfl_sync(0xffffffffu, s.value, source, 32), {}, {}};
}

__device__ __forceinline__ States shuffle_up_each(const States& s, int distance) {
    States other;
    other.column[0] = shuffle_up(s.column[0], distance);
    other.column[1] = shuffle_up(s.column[1], distance);
    other.column[2] = shuffle_up(s.column[2], distance);
    other.column[3] = shuffle_up(s.column[3], distance);
    return other;
}

// Inclusive scan across the slots of a warp, 2 steps.
__device__ __forceinline__ States scan_slots(States s, int lane) {
    States older;
    older = shuffle_up_each(s, 8);
    if (lane >= 8) s = combine_each(older, s);
    older = shuffle_up_each(s, 16);
    if (lane >= 16) s = combine_each(older, s);
    return s;
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

struct Neighbours {  // the dimension along which lines are adjacent in some operand
    long long size;          // size of the dimension
    long long lines;         // difference of the numbers of adjacent lines
    long long input_stride;  // the same in items
    long long mask_stride;
    long long gate_stride;
    long long starts_stride;
};

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, const Mask* mask, const Gate* gate, const Saved* saved, Output* output) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[2][16][8];  // by the parity of the tile

    // ---- a block scans 32 columns, 128 rows at a time; a thread takes 2 of these rows
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 8;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x / 2;
    const long long column = (long long)(blockIdx.x % 2) * 32 + place * 4;
    const int first = (int)(threadIdx.x / 8) * 2;  // the scan position of this thread's first row
    const Input* x = input + (outer * 1000 + (999 - first)) * 64 + column;
    const Mask* m = mask + (outer * 1000 + (999 - first)) * 64 + column;
    const Gate* g = gate + (outer * 1000 + (999 - first)) * 64 + column;
    const Saved* v = saved + (outer * 1000 + (999 - first)) * 64 + column;
    Output* y = output + (outer * 1000 + (999 - first)) * 64 + column;
    int live = 1000 - first;  // rows from here to the end of the column

    // ---- prologue: issue the copies of 1 tiles before the first is scanned
    const auto copy_tile = [&](int tile) {
        if (tile < 8) {
            copy_input(&ring.x[tile % 2][0][threadIdx.x], x, -64, live - tile * 128);
            copy_mask(&ring.m[tile % 2][0][threadIdx.x], m, -64, live - tile * 128);
            copy_gate(&ring.g[tile % 2][0][threadIdx.x], g, -64, live - tile * 128);
            copy_saved(&ring.v[tile % 2][0][threadIdx.x], v, -64, live - tile * 128);
            x += 128LL * -64;
            m += 128LL * -64;
            g += 128LL * -64;
            v += 128LL * -64;
        }
        copy_async_commit();
    };
    copy_tile(0);

    States carry = identities();  // carry from the tiles before this one
    for (int tile = 0; tile < 8; ++tile) {
        copy_tile(tile + 1);
        copy_async_wait<1>();
        Items s = lift_items(load_input(&ring.x[tile % 2][0][threadIdx.x]), load_mask(&ring.m[tile % 2][0][threadIdx.x]), load_gate(&ring.g[tile % 2][0][threadIdx.x]), load_saved(&ring.v[tile % 2][0][threadIdx.x]));

        // ---- scan the rows of the thread, then across the slots of the warp
        const States inclusive = scan_slots(scan_items(s), lane);
        const States older = shuffle_up_each(inclusive, 8);
        const States inside = lane >= 8 ? older : identities();

        // ---- combine the totals of the warps: each thread folds those of its columns
        if (lane >= 24) warp_total[tile % 2][warp][place] = inclusive;
        __syncthreads();
        States prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][0][place]);
        if (warp == 1) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][1][place]);
        if (warp == 2) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][2][place]);
        if (warp == 3) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][3][place]);
        if (warp == 4) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][4][place]);
        if (warp == 5) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][5][place]);
        if (warp == 6) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][6][place]);
        if (warp == 7) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][7][place]);
        if (warp == 8) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][8][place]);
        if (warp == 9) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][9][place]);
        if (warp == 10) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][10][place]);
        if (warp == 11) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][11][place]);
        if (warp == 12) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][12][place]);
        if (warp == 13) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][13][place]);
        if (warp == 14) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][14][place]);
        if (warp == 15) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][15][place]);
        prefix = combine_each(prefix, inside);

        // ---- store
        store_items(y, -64, live - tile * 128, prefix, s);
        y += 128LL * -64;
    }
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
    Neighbours neighbours;
    const void* saved;  // tensor saved by the forward scan
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
    const long long blocks = arguments->lines / 64 * 2;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 106496;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 106496);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (const Gate*)arguments->gate, (const Saved*)arguments->saved, (Output*)arguments->output));
}
#endif
