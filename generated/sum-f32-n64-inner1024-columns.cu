// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n64-inner1024-columns
//          64 float32 items of stride 1024, columns, float32 out
// plan     columns: threads 64, items 16, tiles 1, columns 64, vector 4, apart False, stages 0, blocks 8
//          the scanned dimension has stride 1024: 64 neighbouring columns per block
// target   sm_90
// content  sha256 f0e3a6b7362741d6 of everything below this banner
// again    scanops generate sum-f32-n64-inner1024-columns --target sm_90

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

// ---- 4 columns of a row, as one access reads or writes them; and 16 rows of them
struct alignas(16) InputVector {
    Input column[4];
};
struct InputRows {
    InputVector row[16];
};
struct alignas(16) OutputVector {
    Output column[4];
};
struct alignas(16) States {  // one per column
    State column[4];
};
struct Items {
    States row[16];
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

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    y.column[2] = result(s.column[2]);
    y.column[3] = result(s.column[3]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, const States& prefix, const Items& s) {
    *reinterpret_cast<OutputVector*>(first) = results(combine_each(prefix, s.row[0]));
    *reinterpret_cast<OutputVector*>(first + 1 * step) = results(combine_each(prefix, s.row[1]));
    *reinterpret_cast<OutputVector*>(first + 2 * step) = results(combine_each(prefix, s.row[2]));
    *reinterpret_cast<OutputVector*>(first + 3 * step) = results(combine_each(prefix, s.row[3]));
    *reinterpret_cast<OutputVector*>(first + 4 * step) = results(combine_each(prefix, s.row[4]));
    *reinterpret_cast<OutputVector*>(first + 5 * step) = results(combine_each(prefix, s.row[5]));
    *reinterpret_cast<OutputVector*>(first + 6 * step) = results(combine_each(prefix, s.row[6]));
    *reinterpret_cast<OutputVector*>(first + 7 * step) = results(combine_each(prefix, s.row[7]));
    *reinterpret_cast<OutputVector*>(first + 8 * step) = results(combine_each(prefix, s.row[8]));
    *reinterpret_cast<OutputVector*>(first + 9 * step) = results(combine_each(prefix, s.row[9]));
    *reinterpret_cast<OutputVector*>(first + 10 * step) = results(combine_each(prefix, s.row[10]));
    *reinterpret_cast<OutputVector*>(first + 11 * step) = results(combine_each(prefix, s.row[11]));
    *reinterpret_cast<OutputVector*>(first + 12 * step) = results(combine_each(prefix, s.row[12]));
    *reinterpret_cast<OutputVector*>(first + 13 * step) = results(combine_each(prefix, s.row[13]));
    *reinterpret_cast<OutputVector*>(first + 14 * step) = results(combine_each(prefix, s.row[14]));
    *reinterpret_cast<OutputVector*>(first + 15 * step) = results(combine_each(prefix, s.row[15]));
}

__device__ __forceinline__ States lift_row(const InputVector& x) {
    States s;
    s.column[0] = element(x.column[0]);
    s.column[1] = element(x.column[1]);
    s.column[2] = element(x.column[2]);
    s.column[3] = element(x.column[3]);
    return s;
}

__device__ __forceinline__ Items lift_items(const InputRows& x) {
    Items s;
    s.row[0] = lift_row(x.row[0]);
    s.row[1] = lift_row(x.row[1]);
    s.row[2] = lift_row(x.row[2]);
    s.row[3] = lift_row(x.row[3]);
    s.row[4] = lift_row(x.row[4]);
    s.row[5] = lift_row(x.row[5]);
    s.row[6] = lift_row(x.row[6]);
    s.row[7] = lift_row(x.row[7]);
    s.row[8] = lift_row(x.row[8]);
    s.row[9] = lift_row(x.row[9]);
    s.row[10] = lift_row(x.row[10]);
    s.row[11] = lift_row(x.row[11]);
    s.row[12] = lift_row(x.row[12]);
    s.row[13] = lift_row(x.row[13]);
    s.row[14] = lift_row(x.row[14]);
    s.row[15] = lift_row(x.row[15]);
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
    s.row[8] = combine_each(s.row[7], s.row[8]);
    s.row[9] = combine_each(s.row[8], s.row[9]);
    s.row[10] = combine_each(s.row[9], s.row[10]);
    s.row[11] = combine_each(s.row[10], s.row[11]);
    s.row[12] = combine_each(s.row[11], s.row[12]);
    s.row[13] = combine_each(s.row[12], s.row[13]);
    s.row[14] = combine_each(s.row[13], s.row[14]);
    s.row[15] = combine_each(s.row[14], s.row[15]);
    return s.row[15];
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
    other.column[2] = shuffle_up(s.column[2], distance);
    other.column[3] = shuffle_up(s.column[3], distance);
    return other;
}

// Inclusive scan across the slots of a warp, 1 steps.
__device__ __forceinline__ States scan_slots(States s, int lane) {
    States older;
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

__device__ __forceinline__ long long line_offset(long long line, int rank, const long long* size,
                                                 const long long* stride) {
    long long offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
        offset += line % size[d] * stride[d];
        line /= size[d];
    }
    return offset;
}

__global__ void __launch_bounds__(64, 8)
scan_kernel(const Input* input, Output* output,
            const __grid_constant__ Geometry geometry) {
    __shared__ States warp_total[2][2][16];  // by the parity of the tile

    // ---- a block scans 64 columns, 64 rows at a time; a thread takes 16 of these rows
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 16;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x / 16;
    const long long column = (long long)(blockIdx.x % 16) * 64 + place * 4;
    const long long line = outer * 1024 + column;
    const int first = (int)(threadIdx.x / 16) * 16;  // the scan position of this thread's first row
    const Input* x = input + line_offset(line, geometry.rank, geometry.size, geometry.input_stride)
        + first * geometry.input_step;
    Output* y = output + (outer * 64 + first) * 1024 + column;

    // ---- load 16 rows
    const InputRows x0 = load_input(x, geometry.input_step);
    Items s = lift_items(x0);
    States carry = identities();

    // ---- scan the rows of the thread, then across the slots of the warp
    const States inclusive = scan_slots(scan_items(s), lane);
    const States older = shuffle_up_each(inclusive, 16);
    const States inside = lane >= 16 ? older : identities();

    // ---- combine the totals of the warps: each thread folds those of its columns
    if (lane >= 16) warp_total[0][warp][place] = inclusive;
    __syncthreads();
    States prefix = carry;
    carry = combine_each(carry, warp_total[0][0][place]);
    if (warp == 1) prefix = carry;
    carry = combine_each(carry, warp_total[0][1][place]);
    prefix = combine_each(prefix, inside);

    // ---- store
    store_items(y, 1024, prefix, s);
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
    const long long blocks = arguments->lines / 1024 * 16;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(64);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->geometry));
}
#endif
