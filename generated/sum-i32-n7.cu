// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-i32-n7
//          7 int32 items, int64 out
// plan     staged: threads 32, items 1, tiles 1, rows 64, lanes 1, piece 7, unroll 7
//          64 rows of 7 are contiguous: copied coalesced, scanned in shared memory
// target   sm_90
// content  sha256 9a98e5d69ccac2f3 of everything below this banner
// again    scanops generate sum-i32-n7 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef int Input;  // int32
typedef long long Output;  // int64
typedef unsigned long long Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
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

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift((unsigned long long)((long long)(x))); }

__device__ __forceinline__ Output result(State state) { return (long long)(state); }

// ---- 1 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(1 * sizeof(Input)) InputVector {
    Input item[1];
};
struct alignas(1 * sizeof(Output)) OutputVector {
    Output item[1];
};
struct Items {
    State item[1];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

// ---- a warp's rows in shared memory, contiguous and in memory order
constexpr int room = 448;  // items

struct Staged {
    alignas(16) Input input[room];
    alignas(16) Output output[room];
};

struct alignas(16) Access {  // a 16-byte access
    unsigned word[4];
};

__device__ __forceinline__ void write_access(void* to, const void* from) {
    *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(from);
}

// A warp reads `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void read_rows(Item* staged, const Item* rows, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    int i = lane * width;
    if (count == room) {
#pragma unroll 8
        for (int step = 0; step < room / stride; ++step, i += stride)
            copy_async_16(staged + i, rows + i);
        if (i < room) copy_async_16(staged + i, rows + i);
        return;
    }
    const int whole = count / width * width;
    for (; i < whole; i += stride) copy_async_16(staged + i, rows + i);
    if (whole + lane < count) staged[whole + lane] = rows[whole + lane];
}

// A warp writes `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void write_rows(Item* rows, const Item* staged, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    int i = lane * width;
    if (count == room) {
#pragma unroll 8
        for (int step = 0; step < room / stride; ++step, i += stride)
            write_access(rows + i, staged + i);
        if (i < room) write_access(rows + i, staged + i);
        return;
    }
    const int whole = count / width * width;
    for (; i < whole; i += stride) write_access(rows + i, staged + i);
    if (whole + lane < count) rows[whole + lane] = staged[whole + lane];
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    return s.item[0];
}

// One lane scans the row.
__device__ __forceinline__ void scan_row(const Input* x, Output* y) {
    State before = identity();
#pragma unroll 7
    for (int i = 0; i < 7; i += 1) {
        Items s = lift_items(load_input(x + i));
        const State prefix = before;
        before = combine(before, scan_items(s));
        store_items(y + i, prefix, s);
    }
}

__global__ void __launch_bounds__(32)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- a warp has 64 row(s), independent of other warps
    const int lane = threadIdx.x % 32;
    __shared__ Staged staged;
    const long long line = (long long)blockIdx.x * 64;
    const int count = (int)(lines - line < 64 ? lines - line : 64) * 7;
    input += line * 7;
    output += line * 7;

    // ---- copy the rows to shared memory
    read_rows(staged.input, input, count, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();

    // ---- 1 lane(s) per row; items behind the last row are scanned as well, and not stored
    const int start = lane * 7;
    const Input* const x = staged.input + start;
    Output* const y = staged.output + start;
#pragma unroll
    for (int row = 0; row < 2; ++row)
        scan_row(x + row * 224, y + row * 224);
    __syncwarp();

    // ---- copy the results out
    write_rows(output, staged.output, count, lane);
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
    const long long blocks = (arguments->lines + 63) / 64;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines));
}
#endif
