// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f16-n1000-inner50-mask_b8-reverse
//          1000 float16 items of stride 50, the bool mask selects, reverse, float16 out
// plan     columns: threads 256, items 8, tiles 8, columns 32, vector 2, apart False, stages 0, blocks 2
//          the scanned dimension has stride 50: 32 neighbouring columns per block
// target   sm_90
// content  sha256 10d584389f0c181a of everything below this banner
// again    scanops generate sum-f16-n1000-inner50-mask_b8-reverse --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // float16
typedef unsigned char Mask;  // bool
typedef unsigned short Output;  // float16
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
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
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift(half_to_float(x)) : identity(); }

__device__ __forceinline__ Output result(State state) { return float_to_half(state); }

// ---- 2 columns of a row, as one access reads or writes them; and 8 rows of them
struct alignas(4) InputVector {
    Input column[2];
};
struct InputRows {
    InputVector row[8];
};
struct alignas(2) MaskVector {
    Mask column[2];
};
struct MaskRows {
    MaskVector row[8];
};
struct alignas(4) OutputVector {
    Output column[2];
};
struct alignas(8) States {  // one per column
    State column[2];
};
struct Items {
    States row[8];
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    s.column[1] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    s.column[1] = combine(older.column[1], newer.column[1]);
    return s;
}

__device__ __forceinline__ InputRows load_input(const Input* first, long long step, const Input* begin, int live) {
    InputRows rows;
    rows.row[0] = *reinterpret_cast<const InputVector*>(live > 0 ? first : begin);
    rows.row[1] = *reinterpret_cast<const InputVector*>(live > 1 ? first + 1 * step : begin);
    rows.row[2] = *reinterpret_cast<const InputVector*>(live > 2 ? first + 2 * step : begin);
    rows.row[3] = *reinterpret_cast<const InputVector*>(live > 3 ? first + 3 * step : begin);
    rows.row[4] = *reinterpret_cast<const InputVector*>(live > 4 ? first + 4 * step : begin);
    rows.row[5] = *reinterpret_cast<const InputVector*>(live > 5 ? first + 5 * step : begin);
    rows.row[6] = *reinterpret_cast<const InputVector*>(live > 6 ? first + 6 * step : begin);
    rows.row[7] = *reinterpret_cast<const InputVector*>(live > 7 ? first + 7 * step : begin);
    return rows;
}

__device__ __forceinline__ MaskRows load_mask(const Mask* first, long long step, const Mask* begin, int live) {
    MaskRows rows;
    rows.row[0] = *reinterpret_cast<const MaskVector*>(live > 0 ? first : begin);
    rows.row[1] = *reinterpret_cast<const MaskVector*>(live > 1 ? first + 1 * step : begin);
    rows.row[2] = *reinterpret_cast<const MaskVector*>(live > 2 ? first + 2 * step : begin);
    rows.row[3] = *reinterpret_cast<const MaskVector*>(live > 3 ? first + 3 * step : begin);
    rows.row[4] = *reinterpret_cast<const MaskVector*>(live > 4 ? first + 4 * step : begin);
    rows.row[5] = *reinterpret_cast<const MaskVector*>(live > 5 ? first + 5 * step : begin);
    rows.row[6] = *reinterpret_cast<const MaskVector*>(live > 6 ? first + 6 * step : begin);
    rows.row[7] = *reinterpret_cast<const MaskVector*>(live > 7 ? first + 7 * step : begin);
    return rows;
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, int live, const States& prefix, const Items& s) {
    if (live > 0) *reinterpret_cast<OutputVector*>(first) = results(combine_each(prefix, s.row[0]));
    if (live > 1) *reinterpret_cast<OutputVector*>(first + 1 * step) = results(combine_each(prefix, s.row[1]));
    if (live > 2) *reinterpret_cast<OutputVector*>(first + 2 * step) = results(combine_each(prefix, s.row[2]));
    if (live > 3) *reinterpret_cast<OutputVector*>(first + 3 * step) = results(combine_each(prefix, s.row[3]));
    if (live > 4) *reinterpret_cast<OutputVector*>(first + 4 * step) = results(combine_each(prefix, s.row[4]));
    if (live > 5) *reinterpret_cast<OutputVector*>(first + 5 * step) = results(combine_each(prefix, s.row[5]));
    if (live > 6) *reinterpret_cast<OutputVector*>(first + 6 * step) = results(combine_each(prefix, s.row[6]));
    if (live > 7) *reinterpret_cast<OutputVector*>(first + 7 * step) = results(combine_each(prefix, s.row[7]));
}

__device__ __forceinline__ States lift_row(const InputVector& x, const MaskVector& m) {
    States s;
    s.column[0] = element(x.column[0], m.column[0]);
    s.column[1] = element(x.column[1], m.column[1]);
    return s;
}

__device__ __forceinline__ Items lift_items(const InputRows& x, const MaskRows& m) {
    Items s;
    s.row[0] = lift_row(x.row[0], m.row[0]);
    s.row[1] = lift_row(x.row[1], m.row[1]);
    s.row[2] = lift_row(x.row[2], m.row[2]);
    s.row[3] = lift_row(x.row[3], m.row[3]);
    s.row[4] = lift_row(x.row[4], m.row[4]);
    s.row[5] = lift_row(x.row[5], m.row[5]);
    s.row[6] = lift_row(x.row[6], m.row[6]);
    s.row[7] = lift_row(x.row[7], m.row[7]);
    return s;
}

// Inclusive scan of the rows in place; returns their totals.
__device__ __forceinline__ States scan_items(Items& s) {
    s.row[1] = combine_each(s.row[0], s.row[1]);
    s.row[2] = combine_each(s.row[1], s.row[2]);
    s.row[3] = combine_each(s.row[2], s.row[3]);
    s.row[4] = combine_each(s.row[3], s.row[4]);
    s.row[5] = combine_each(s.row[4], s.row[5]);
    s.row[6] = combine_each(s.row[5], s.row[6]);
    s.row[7] = combine_each(s.row[6], s.row[7]);
    return s.row[7];
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
}

__device__ __forceinline__ States shuffle_up_each(const States& s, int distance) {
    States other;
    other.column[0] = shuffle_up(s.column[0], distance);
    other.column[1] = shuffle_up(s.column[1], distance);
    return other;
}

// Inclusive scan across the slots of a warp, 1 steps.
__device__ __forceinline__ States scan_slots(States s, int lane) {
    States older;
    older = shuffle_up_each(s, 16);
    if (lane >= 16) s = combine_each(older, s);
    return s;
}

__global__ void __launch_bounds__(256, 2)
scan_kernel(const Input* input, const Mask* mask, Output* output) {
    __shared__ States warp_total[2][8][16];  // by the parity of the tile

    // ---- a block scans 32 columns, 128 rows at a time; a thread takes 8 of these rows
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 16;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x / 2;
    const long long column = (long long)(blockIdx.x % 2) * 32 + place * 2;
    const int first = (int)(threadIdx.x / 16) * 8;  // the scan position of this thread's first row
    const Input* x = input + (outer * 1000 + (999 - first)) * 50 + column;
    const Mask* m = mask + (outer * 1000 + (999 - first)) * 50 + column;
    Output* y = output + (outer * 1000 + (999 - first)) * 50 + column;
    int live = column < 50 ? 1000 - first : 0;  // rows from here to the end of the column

    // ---- load 8 rows
    InputRows x0 = load_input(x, -50, input, live);
    MaskRows m0 = load_mask(m, -50, mask, live);

    States carry = identities();  // carry from the tiles before this one
    for (int tile = 0; tile < 8; ++tile) {
        Items s = lift_items(x0, m0);

        // ---- prefetch the next tile: its loads are in flight while this one is scanned
        if (tile < 7) {
            x += 128LL * -50;
            x0 = load_input(x, -50, input, live - 128);
            m += 128LL * -50;
            m0 = load_mask(m, -50, mask, live - 128);
        }

        // ---- scan the rows of the thread, then across the slots of the warp
        const States inclusive = scan_slots(scan_items(s), lane);
        const States older = shuffle_up_each(inclusive, 16);
        const States inside = lane >= 16 ? older : identities();

        // ---- combine the totals of the warps: each thread folds those of its columns
        if (lane >= 16) warp_total[tile % 2][warp][place] = inclusive;
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
        prefix = combine_each(prefix, inside);

        // ---- store
        store_items(y, -50, live, prefix, s);
        y += 128LL * -50;
        live -= 128;
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
    const long long blocks = arguments->lines / 50 * 2;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output));
}
#endif
