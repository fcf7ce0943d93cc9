// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n3-inner4096
//          3 float32 items of stride 4096, float32 out
// plan     columns: threads 32, items 3, tiles 1, columns 128, vector 4, apart False, stages 0, blocks 16
//          the scanned dimension has stride 4096: 128 neighbouring columns per block
// target   sm_90
// content  sha256 b24519337cd16b1e of everything below this banner
// again    scanops generate prod-f32-n3-inner4096 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

// Compensation: what rounding has lost so far, and a total with it added. Infinities and NaN carry none; -0 keeps its sign.
__device__ __forceinline__ Value lose(Value lost, Value older, Value newer) { return fma(lost, newer, fma(older, newer, -(older * newer))); }

__device__ __forceinline__ Value regain(Value total, Value lost) { return total - total == 0 && total != 0 ? total + lost : total; }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 columns of a row, as one access reads or writes them; and 3 rows of them
struct alignas(16) InputVector {
    Input column[4];
};
struct InputRows {
    InputVector row[3];
};
struct alignas(16) OutputVector {
    Output column[4];
};
struct alignas(16) States {  // one per column
    State column[4];
};
struct Items {
    States row[3];
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

__device__ __forceinline__ States lose_each(const States& lost, const States& older, const States& newer) {
    States s;
    s.column[0] = lose(lost.column[0], older.column[0], newer.column[0]);
    s.column[1] = lose(lost.column[1], older.column[1], newer.column[1]);
    s.column[2] = lose(lost.column[2], older.column[2], newer.column[2]);
    s.column[3] = lose(lost.column[3], older.column[3], newer.column[3]);
    return s;
}

__device__ __forceinline__ States regain_each(const States& totals, const States& lost) {
    States s;
    s.column[0] = regain(totals.column[0], lost.column[0]);
    s.column[1] = regain(totals.column[1], lost.column[1]);
    s.column[2] = regain(totals.column[2], lost.column[2]);
    s.column[3] = regain(totals.column[3], lost.column[3]);
    return s;
}

__device__ __forceinline__ InputRows load_input(const Input* first, long long step) {
    InputRows rows;
    rows.row[0] = *reinterpret_cast<const InputVector*>(first);
    rows.row[1] = *reinterpret_cast<const InputVector*>(first + 1 * step);
    rows.row[2] = *reinterpret_cast<const InputVector*>(first + 2 * step);
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
    return s;
}

// Inclusive scan of the rows in place; returns their totals, with the compensation added.
__device__ __forceinline__ States scan_items(Items& s) {
    States lost = {};
    lost = lose_each(lost, s.row[0], s.row[1]);
    s.row[1] = combine_each(s.row[0], s.row[1]);
    lost = lose_each(lost, s.row[1], s.row[2]);
    s.row[2] = combine_each(s.row[1], s.row[2]);
    return s.row[2] = regain_each(s.row[2], lost);
}

__global__ void __launch_bounds__(32, 16)
scan_kernel(const Input* input, Output* output) {
    // ---- a block scans 128 columns, 3 rows at a time; a thread takes 3 of these rows
    const int place = threadIdx.x % 32;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x / 32;
    const long long column = (long long)(blockIdx.x % 32) * 128 + place * 4;
    const int first = (int)(threadIdx.x / 32) * 3;  // the scan position of this thread's first row
    const Input* x = input + (outer * 3 + first) * 4096 + column;
    Output* y = output + (outer * 3 + first) * 4096 + column;

    // ---- load 3 rows
    const InputRows x0 = load_input(x, 4096);
    Items s = lift_items(x0);
    States carry = identities();

    // ---- scan the rows of the thread
    const States inclusive = scan_items(s);
    States prefix = carry;
    carry = combine_each(carry, inclusive);

    // ---- store
    store_items(y, 4096, prefix, s);
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
    const long long blocks = arguments->lines / 4096 * 32;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
