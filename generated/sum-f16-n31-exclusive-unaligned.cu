// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f16-n31-exclusive-unaligned
//          31 float16 items, exclusive, unaligned, float16 out
// plan     staged: threads 32, items 1, tiles 1, rows 32, lanes 1, piece 31, unroll 16
//          32 rows of 31 are contiguous: copied coalesced, scanned in shared memory
// target   sm_90
// content  sha256 6296dec05f609703 of everything below this banner
// again    scanops generate sum-f16-n31-exclusive-unaligned --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // float16
typedef unsigned short Output;  // float16
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: staged
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 31;  // of a line, in items
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kThreads = 32;  // of a block
constexpr int kLanes = 1;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 1;  // of an access
constexpr int kRun = 1;  // consecutive items that a thread scans serially
constexpr int kOutItems = 1;  // of a store
constexpr int kUnroll = 16;  // accesses of a lane in one step of its loop
constexpr int kRoom = 992;  // items of a warp's rows in shared memory
constexpr int rows = 32;  // of a warp
static_assert(kThreads % 32 == 0, "blocks of whole warps");

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

// Asynchronous global-to-shared copies (cp.async).
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
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

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) {
    return lift(half_to_float(x));
}

__device__ __forceinline__ Output result(State state) { return float_to_half(state); }

// ---- accesses hold items in memory order, Items hold states in scan order
struct alignas(kItems * sizeof(Input)) InputVector {
    Input item[kItems];
};
static_assert((kItems & (kItems - 1)) == 0 && sizeof(InputVector) <= 16, "an access is one instruction");
struct alignas(kOutItems * sizeof(Output)) OutputVector {
    Output item[kOutItems];
};
struct Items {
    State item[kRun];
};

// Where an access of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }

// Offset in memory to an item so many items further in scan order.
__device__ __forceinline__ constexpr Position along(Position items) { return kReverse ? -items : items; }

// Lowest index in memory of `items` items from a scan position.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// States of consecutive items.
__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRun; ++k)
        s.item[k] = element(x.item[place_of(k, kItems)]);
    return s;
}

// ---- a warp's rows in shared memory, contiguous and in memory order
struct Staged {
    alignas(16) Input input[kRoom + 16 / sizeof(Input)];
    alignas(16) Output output[kRoom + 16 / sizeof(Output)];
};

struct alignas(16) Access {  // a 16-byte access
    unsigned word[4];
};

struct Row {  // a lane's part of a row in shared memory
    const Input* x;
    Output* y;
};

// Items between the preceding 16-byte boundary and the rows.
template <class Item>
__device__ __forceinline__ int phase(const Item* rows) {
    return (int)((unsigned long long)rows % 16 / sizeof(Item));
}

__device__ __forceinline__ void write_access(void* to, const void* from) {
    *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(from);
}

// A warp reads `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void read_rows(Item* staged, const Item* rows, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    const int begin = phase(rows), end = begin + count;
    rows -= begin;  // both sides start at the boundary
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (int i = first + lane * width; i < whole; i += stride) copy_async_16(staged + i, rows + i);
    if (lane >= begin && lane < first && lane < end) staged[lane] = rows[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) staged[last] = rows[last];
}

// A warp writes `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void write_rows(Item* rows, const Item* staged, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    const int begin = phase(rows), end = begin + count;
    rows -= begin;  // both sides start at the boundary
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (int i = first + lane * width; i < whole; i += stride) write_access(rows + i, staged + i);
    if (lane >= begin && lane < first && lane < end) rows[lane] = staged[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) rows[last] = staged[last];
}

// Inclusive scan of consecutive items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        s.item[k] = combine(s.item[k - 1], s.item[k]);
    }
    return s.item[kRun - 1];
}

// Results of consecutive items, given the prefix before them.
__device__ __forceinline__ void make_results(OutputVector& y, State prefix, const Items& s) {
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        y.item[place_of(k, kItems)] = result(k > 0 ? combine(prefix, s.item[k - 1]) : prefix);
    }
}

__device__ __forceinline__ Items read_items(const Row& row, int i) {
    return lift_items(*reinterpret_cast<const InputVector*>(row.x + along(i)));
}

__device__ __forceinline__ void write_items(const Row& row, int i, State prefix, const Items& s) {
    OutputVector y;
    make_results(y, prefix, s);
    *reinterpret_cast<OutputVector*>(row.y + along(i)) = y;
}

// One lane scans the row.
__device__ __forceinline__ void scan_row(Row row, Position length) {
    State before = identity();
#pragma unroll kUnroll
    for (int i = 0; i < length; i += kItems) {
        Items s = read_items(row, i);
        const State prefix = before;
        before = combine(before, scan_items(s));
        write_items(row, i, prefix, s);
    }
}

__global__ void __launch_bounds__(kThreads)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- a warp has `rows` rows, independent of other warps
    const int lane = threadIdx.x % 32;
    __shared__ Staged staged;
    const long long line = (long long)blockIdx.x * rows;
    const int count = (int)(lines - line < rows ? lines - line : rows) * length;
    input += line * length;
    output += line * length;

    // ---- copy the rows to shared memory
    read_rows(staged.input, input, count, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();

    // ---- scan some rows at once, by a power of two of lanes each; items past the last row are scanned, not stored
    constexpr int at_once = 32 / kLanes, turns = rows / at_once;
    const int own_row = lane / kLanes;
    const int start = own_row * length + memory_index(0, kItems, length);
    Row row = {
        staged.input + phase(input) + start,
        staged.output + phase(output) + start,
    };
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
        scan_row(row, length);
        row.x += at_once * length;
        row.y += at_once * length;
    }
    __syncwarp();

    // ---- copy the results out
    write_rows(output, staged.output, count, lane);
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
constexpr int kWarps = 1;  // of a block
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
    const long long blocks = (arguments->lines + kWarps * rows - 1) / (kWarps * rows);
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(kThreads);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines));
}
#endif
