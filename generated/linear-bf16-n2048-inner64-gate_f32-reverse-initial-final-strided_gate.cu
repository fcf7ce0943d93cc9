// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate
//          2048 bfloat16 items of stride 64, a float32 gate, reverse, initial, final, strided_gate, float32 out
// plan     columns: threads 512, items 16, tiles 8, columns 32, vector 1, apart False, stages 0, blocks 1
//          the scanned dimension has stride 64: 32 neighbouring columns per block
// target   sm_90
// content  sha256 6d23231b88c91241 of everything below this banner
// again    scanops generate linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef float Gate;  // float32
typedef float Output;  // float32
typedef float Carry;  // float32: carry-in and carry-out of a line
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
};

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

__device__ __forceinline__ State element(Input x, Gate g) { return lift(bfloat_to_float(x), (float)(g)); }

__device__ __forceinline__ Output result(State state) { return state.value; }

// Carry-in: the state of a result that is carried in.
__device__ __forceinline__ State begin_line(const Carry* carry_in) {
    const Value x = *carry_in;
    return {1, x};
}

// Carry-out: the result of the whole line.
__device__ __forceinline__ Carry end_line(State state) {
    return state.value;
}

// ---- 1 column of a row, as one access reads or writes it; and 16 rows of them
struct alignas(2) InputVector {
    Input column[1];
};
struct InputRows {
    InputVector row[16];
};
struct alignas(4) GateVector {
    Gate column[1];
};
struct GateRows {
    GateVector row[16];
};
struct alignas(4) OutputVector {
    Output column[1];
};
struct alignas(8) States {  // one per column
    State column[1];
};
struct Items {
    States row[16];
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    return s;
}

__device__ __forceinline__ States append_each(const States& older, const States& newer) {
    States s;
    s.column[0] = append(older.column[0], newer.column[0]);
    return s;
}

// The carry-in of the thread's lines; `there`: how many of them exist.
__device__ __forceinline__ States begin_lines(const Carry* carry_in, long long step, int there) {
    States s = identities();
    if (there > 0) s.column[0] = begin_line(carry_in);
    return s;
}

__device__ __forceinline__ InputRows load_input(const Input* first, long long step) {
    InputRows rows;
    rows.row[0] = *reinterpret_cast<const InputVector*>(first);
    rows.row[1] = *reinterpret_cast<const InputVector*>(first + 1 * step);
    rows.row[2] = *reinterpret_cast<const InputVector*>(first + 2 * step);
    rows.row[3] = *reinterpret_cast<const InputVector*>(first + 3 * step);
    rows.row[4] = *reinterpret_cast<const InputVector*>(first + 4 * step);
    rows.row[5] = *reinterpret_cast<const InputVector*>(first + 5 * step);
    rows.row[6] = *reinterpret_cast<const InputVector*>(first + 6 * step);
    rows.row[7] = *reinterpret_cast<const InputVector*>(first + 7 * step);
    rows.row[8] = *reinterpret_cast<const InputVector*>(first + 8 * step);
    rows.row[9] = *reinterpret_cast<const InputVector*>(first + 9 * step);
    rows.row[10] = *reinterpret_cast<const InputVector*>(first + 10 * step);
    rows.row[11] = *reinterpret_cast<const InputVector*>(first + 11 * step);
    rows.row[12] = *reinterpret_cast<const InputVector*>(first + 12 * step);
    rows.row[13] = *reinterpret_cast<const InputVector*>(first + 13 * step);
    rows.row[14] = *reinterpret_cast<const InputVector*>(first + 14 * step);
    rows.row[15] = *reinterpret_cast<const InputVector*>(first + 15 * step);
    return rows;
}

__device__ __forceinline__ GateRows load_gate(const Gate* first, long long step) {
    GateRows rows;
    rows.row[0] = *reinterpret_cast<const GateVector*>(first);
    rows.row[1] = *reinterpret_cast<const GateVector*>(first + 1 * step);
    rows.row[2] = *reinterpret_cast<const GateVector*>(first + 2 * step);
    rows.row[3] = *reinterpret_cast<const GateVector*>(first + 3 * step);
    rows.row[4] = *reinterpret_cast<const GateVector*>(first + 4 * step);
    rows.row[5] = *reinterpret_cast<const GateVector*>(first + 5 * step);
    rows.row[6] = *reinterpret_cast<const GateVector*>(first + 6 * step);
    rows.row[7] = *reinterpret_cast<const GateVector*>(first + 7 * step);
    rows.row[8] = *reinterpret_cast<const GateVector*>(first + 8 * step);
    rows.row[9] = *reinterpret_cast<const GateVector*>(first + 9 * step);
    rows.row[10] = *reinterpret_cast<const GateVector*>(first + 10 * step);
    rows.row[11] = *reinterpret_cast<const GateVector*>(first + 11 * step);
    rows.row[12] = *reinterpret_cast<const GateVector*>(first + 12 * step);
    rows.row[13] = *reinterpret_cast<const GateVector*>(first + 13 * step);
    rows.row[14] = *reinterpret_cast<const GateVector*>(first + 14 * step);
    rows.row[15] = *reinterpret_cast<const GateVector*>(first + 15 * step);
    return rows;
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, States prefix, const Items& s) {
    prefix = append_each(prefix, s.row[0]);
    *reinterpret_cast<OutputVector*>(first) = results(prefix);
    prefix = append_each(prefix, s.row[1]);
    *reinterpret_cast<OutputVector*>(first + 1 * step) = results(prefix);
    prefix = append_each(prefix, s.row[2]);
    *reinterpret_cast<OutputVector*>(first + 2 * step) = results(prefix);
    prefix = append_each(prefix, s.row[3]);
    *reinterpret_cast<OutputVector*>(first + 3 * step) = results(prefix);
    prefix = append_each(prefix, s.row[4]);
    *reinterpret_cast<OutputVector*>(first + 4 * step) = results(prefix);
    prefix = append_each(prefix, s.row[5]);
    *reinterpret_cast<OutputVector*>(first + 5 * step) = results(prefix);
    prefix = append_each(prefix, s.row[6]);
    *reinterpret_cast<OutputVector*>(first + 6 * step) = results(prefix);
    prefix = append_each(prefix, s.row[7]);
    *reinterpret_cast<OutputVector*>(first + 7 * step) = results(prefix);
    prefix = append_each(prefix, s.row[8]);
    *reinterpret_cast<OutputVector*>(first + 8 * step) = results(prefix);
    prefix = append_each(prefix, s.row[9]);
    *reinterpret_cast<OutputVector*>(first + 9 * step) = results(prefix);
    prefix = append_each(prefix, s.row[10]);
    *reinterpret_cast<OutputVector*>(first + 10 * step) = results(prefix);
    prefix = append_each(prefix, s.row[11]);
    *reinterpret_cast<OutputVector*>(first + 11 * step) = results(prefix);
    prefix = append_each(prefix, s.row[12]);
    *reinterpret_cast<OutputVector*>(first + 12 * step) = results(prefix);
    prefix = append_each(prefix, s.row[13]);
    *reinterpret_cast<OutputVector*>(first + 13 * step) = results(prefix);
    prefix = append_each(prefix, s.row[14]);
    *reinterpret_cast<OutputVector*>(first + 14 * step) = results(prefix);
    prefix = append_each(prefix, s.row[15]);
    *reinterpret_cast<OutputVector*>(first + 15 * step) = results(prefix);
}

// Store the carry-out if these rows hold the lines' last one: `rest` rows remain from the first of these; `there`: how many
// lines exist.
__device__ __forceinline__ void end_items(Carry* carry_out, long long rest, int there, States prefix, const Items& s) {
    if (rest < 1 || rest > 16) return;
    States last = prefix;
    prefix = append_each(prefix, s.row[0]);
    if (rest == 1) last = prefix;
    prefix = append_each(prefix, s.row[1]);
    if (rest == 2) last = prefix;
    prefix = append_each(prefix, s.row[2]);
    if (rest == 3) last = prefix;
    prefix = append_each(prefix, s.row[3]);
    if (rest == 4) last = prefix;
    prefix = append_each(prefix, s.row[4]);
    if (rest == 5) last = prefix;
    prefix = append_each(prefix, s.row[5]);
    if (rest == 6) last = prefix;
    prefix = append_each(prefix, s.row[6]);
    if (rest == 7) last = prefix;
    prefix = append_each(prefix, s.row[7]);
    if (rest == 8) last = prefix;
    prefix = append_each(prefix, s.row[8]);
    if (rest == 9) last = prefix;
    prefix = append_each(prefix, s.row[9]);
    if (rest == 10) last = prefix;
    prefix = append_each(prefix, s.row[10]);
    if (rest == 11) last = prefix;
    prefix = append_each(prefix, s.row[11]);
    if (rest == 12) last = prefix;
    prefix = append_each(prefix, s.row[12]);
    if (rest == 13) last = prefix;
    prefix = append_each(prefix, s.row[13]);
    if (rest == 14) last = prefix;
    prefix = append_each(prefix, s.row[14]);
    if (rest == 15) last = prefix;
    prefix = append_each(prefix, s.row[15]);
    if (rest == 16) last = prefix;
    if (there > 0) carry_out[0] = end_line(last.column[0]);
}

__device__ __forceinline__ States lift_row(const InputVector& x, const GateVector& g) {
    States s;
    s.column[0] = element(x.column[0], g.column[0]);
    return s;
}

__device__ __forceinline__ Items lift_items(const InputRows& x, const GateRows& g) {
    Items s;
    s.row[0] = lift_row(x.row[0], g.row[0]);
    s.row[1] = lift_row(x.row[1], g.row[1]);
    s.row[2] = lift_row(x.row[2], g.row[2]);
    s.row[3] = lift_row(x.row[3], g.row[3]);
    s.row[4] = lift_row(x.row[4], g.row[4]);
    s.row[5] = lift_row(x.row[5], g.row[5]);
    s.row[6] = lift_row(x.row[6], g.row[6]);
    s.row[7] = lift_row(x.row[7], g.row[7]);
    s.row[8] = lift_row(x.row[8], g.row[8]);
    s.row[9] = lift_row(x.row[9], g.row[9]);
    s.row[10] = lift_row(x.row[10], g.row[10]);
    s.row[11] = lift_row(x.row[11], g.row[11]);
    s.row[12] = lift_row(x.row[12], g.row[12]);
    s.row[13] = lift_row(x.row[13], g.row[13]);
    s.row[14] = lift_row(x.row[14], g.row[14]);
    s.row[15] = lift_row(x.row[15], g.row[15]);
    return s;
}

// The total of the rows, per column.
__device__ __forceinline__ States scan_items(const Items& s) {
    States total = append_each(identities(), s.row[0]);
    total = append_each(total, s.row[1]);
    total = append_each(total, s.row[2]);
    total = append_each(total, s.row[3]);
    total = append_each(total, s.row[4]);
    total = append_each(total, s.row[5]);
    total = append_each(total, s.row[6]);
    total = append_each(total, s.row[7]);
    total = append_each(total, s.row[8]);
    total = append_each(total, s.row[9]);
    total = append_each(total, s.row[10]);
    total = append_each(total, s.row[11]);
    total = append_each(total, s.row[12]);
    total = append_each(total, s.row[13]);
    total = append_each(total, s.row[14]);
    total = append_each(total, s.row[15]);
    return total;
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

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, const Gate* gate, Output* output,
            const __grid_constant__ Geometry geometry, const Carry* carry_in, long long carry_in_step, Carry* carry_out) {
    __shared__ States warp_total[2][16][32];  // by the parity of the tile

    // ---- a block scans 32 columns, 256 rows at a time; a thread takes 16 of these rows
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 32;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x / 2;
    const long long column = (long long)(blockIdx.x % 2) * 32 + place * 1;
    const long long line = outer * 64 + column;
    const int first = (int)(threadIdx.x / 32) * 16;  // the scan position of this thread's first row
    const Input* x = input + (outer * 2048 + (2047 - first)) * 64 + column;
    const Gate* g = gate + line_offset(line, geometry.rank, geometry.size, geometry.gate_stride)
        + (2047 - first) * geometry.gate_step;
    Output* y = output + (outer * 2048 + (2047 - first)) * 64 + column;

    // ---- load 16 rows
    InputRows x0 = load_input(x, -64);
    GateRows g0 = load_gate(g, -geometry.gate_step);

    States carry = begin_lines(carry_in + line * carry_in_step, carry_in_step, 1);  // carry from the tiles before this one
    for (int tile = 0; tile < 8; ++tile) {
        Items s = lift_items(x0, g0);

        // ---- prefetch the next tile: its loads are in flight while this one is scanned
        if (tile < 7) {
            x += 256LL * -64;
            x0 = load_input(x, -64);
            g += 256LL * -geometry.gate_step;
            g0 = load_gate(g, -geometry.gate_step);
        }

        // ---- scan the rows of the thread
        const States inclusive = scan_items(s);

        // ---- combine the totals of the warps: each thread folds those of its columns
        warp_total[tile % 2][warp][place] = inclusive;
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

        // ---- store
        store_items(y, -64, prefix, s);
        end_items(carry_out + line, 2048 - first - tile * 256, 1, prefix, s);
        y += 256LL * -64;
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
    const Carry* const carry_in = (const Carry*)arguments->carry_in;
    const long long carry_in_step = arguments->carry_in_step;
    Carry* const carry_out = (Carry*)arguments->carry_out;
    const long long blocks = arguments->lines / 64 * 2;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Gate*)arguments->gate, (Output*)arguments->output, arguments->geometry, carry_in, carry_in_step, carry_out));
}
#endif
