// scanops: y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))
//
// spec     logcumsumexp-f16-n1000-inner50-exclusive
//          1000 float16 items of stride 50, exclusive, float16 out
// plan     columns: threads 512, items 11, tiles 6, columns 64, vector 2, apart False, stages 2, blocks 1
//          the scanned dimension has stride 50: 64 neighbouring columns per block
// target   sm_90
// content  sha256 5ee4fa4e8d8c7275 of everything below this banner
// again    scanops generate logcumsumexp-f16-n1000-inner50-exclusive --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // float16
typedef unsigned short Output;  // float16
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value high;
    Value rest;
};

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

__device__ __forceinline__ float log2_of(float x) {  // absolute error 2^-22, relative above 1
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

#endif

// ---- operator logcumsumexp: y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

__device__ __forceinline__ Value ratio(Value a, Value b) {  // exp(min(a, b) - max(a, b)); 1 for equal infinities
    return exp(a == b ? 0 : -fabs(a - b));
}

__device__ __forceinline__ Value log_of_more(Value x) {  // log(1 + x)
    const Value of_little = fma(x * x, fma(x, (Value)0.33333333, (Value)-0.5), x);
    return x < (Value)0x1p-6 ? of_little : log2_of(1 + x) * (Value)0.69314718;
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

__device__ __forceinline__ State element(Input x) { return lift(half_to_float(x)); }

__device__ __forceinline__ Output result(State state) { return float_to_half(state.high + log_of_more(state.rest)); }

// ---- 2 columns of a row, as one access reads or writes them; and 11 rows of them
struct alignas(4) InputVector {
    Input column[2];
};
struct InputRows {
    InputVector row[11];
};
struct alignas(4) OutputVector {
    Output column[2];
};
struct alignas(16) States {  // one per column
    State column[2];
};
struct Items {
    States row[11];
};
struct Ring {  // multistage ring of tiles, by stage, row and thread: a thread reads what it copied, so no barrier is needed
    InputVector x[2][11][512];
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

__device__ __forceinline__ States append_each(const States& older, const States& newer) {
    States s;
    s.column[0] = append(older.column[0], newer.column[0]);
    s.column[1] = append(older.column[1], newer.column[1]);
    return s;
}

__device__ __forceinline__ InputRows load_input(const InputVector* slot) {
    InputRows rows;
    rows.row[0] = slot[0];
    rows.row[1] = slot[512];
    rows.row[2] = slot[1024];
    rows.row[3] = slot[1536];
    rows.row[4] = slot[2048];
    rows.row[5] = slot[2560];
    rows.row[6] = slot[3072];
    rows.row[7] = slot[3584];
    rows.row[8] = slot[4096];
    rows.row[9] = slot[4608];
    rows.row[10] = slot[5120];
    return rows;
}

__device__ __forceinline__ void copy_input(InputVector* slot, const Input* first, long long step, int live) {
    if (live > 0) copy_async_4(slot, first);
    if (live > 1) copy_async_4(slot + 512, first + 1 * step);
    if (live > 2) copy_async_4(slot + 1024, first + 2 * step);
    if (live > 3) copy_async_4(slot + 1536, first + 3 * step);
    if (live > 4) copy_async_4(slot + 2048, first + 4 * step);
    if (live > 5) copy_async_4(slot + 2560, first + 5 * step);
    if (live > 6) copy_async_4(slot + 3072, first + 6 * step);
    if (live > 7) copy_async_4(slot + 3584, first + 7 * step);
    if (live > 8) copy_async_4(slot + 4096, first + 8 * step);
    if (live > 9) copy_async_4(slot + 4608, first + 9 * step);
    if (live > 10) copy_async_4(slot + 5120, first + 10 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, int live, States prefix, const Items& s) {
    if (live > 0) *reinterpret_cast<OutputVector*>(first) = results(prefix);
    prefix = append_each(prefix, s.row[0]);
    if (live > 1) *reinterpret_cast<OutputVector*>(first + 1 * step) = results(prefix);
    prefix = append_each(prefix, s.row[1]);
    if (live > 2) *reinterpret_cast<OutputVector*>(first + 2 * step) = results(prefix);
    prefix = append_each(prefix, s.row[2]);
    if (live > 3) *reinterpret_cast<OutputVector*>(first + 3 * step) = results(prefix);
    prefix = append_each(prefix, s.row[3]);
    if (live > 4) *reinterpret_cast<OutputVector*>(first + 4 * step) = results(prefix);
    prefix = append_each(prefix, s.row[4]);
    if (live > 5) *reinterpret_cast<OutputVector*>(first + 5 * step) = results(prefix);
    prefix = append_each(prefix, s.row[5]);
    if (live > 6) *reinterpret_cast<OutputVector*>(first + 6 * step) = results(prefix);
    prefix = append_each(prefix, s.row[6]);
    if (live > 7) *reinterpret_cast<OutputVector*>(first + 7 * step) = results(prefix);
    prefix = append_each(prefix, s.row[7]);
    if (live > 8) *reinterpret_cast<OutputVector*>(first + 8 * step) = results(prefix);
    prefix = append_each(prefix, s.row[8]);
    if (live > 9) *reinterpret_cast<OutputVector*>(first + 9 * step) = results(prefix);
    prefix = append_each(prefix, s.row[9]);
    if (live > 10) *reinterpret_cast<OutputVector*>(first + 10 * step) = results(prefix);
    prefix = append_each(prefix, s.row[10]);
}

__device__ __forceinline__ States lift_row(const InputVector& x) {
    States s;
    s.column[0] = element(x.column[0]);
    s.column[1] = element(x.column[1]);
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
    return total;
}

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, Output* output) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[2][16][32];  // by the parity of the tile

    // ---- a block scans 64 columns, 176 rows at a time; a thread takes 11 of these rows
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 32;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x;
    const long long column = place * 2;
    const int first = (int)(threadIdx.x / 32) * 11;  // the scan position of this thread's first row
    const Input* x = input + (outer * 1000 + first) * 50 + column;
    Output* y = output + (outer * 1000 + first) * 50 + column;
    int live = column < 50 ? 1000 - first : 0;  // rows from here to the end of the column

    // ---- prologue: issue the copies of 1 tiles before the first is scanned
    const auto copy_tile = [&](int tile) {
        if (tile < 6) {
            copy_input(&ring.x[tile % 2][0][threadIdx.x], x, 50, live - tile * 176);
            x += 176LL * 50;
        }
        copy_async_commit();
    };
    copy_tile(0);

    States carry = identities();  // carry from the tiles before this one
    for (int tile = 0; tile < 6; ++tile) {
        copy_tile(tile + 1);
        copy_async_wait<1>();
        Items s = lift_items(load_input(&ring.x[tile % 2][0][threadIdx.x]));

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
        store_items(y, 50, live - tile * 176, prefix, s);
        y += 176LL * 50;
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
    const long long blocks = arguments->lines / 50 * 1;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 45056;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 45056);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
