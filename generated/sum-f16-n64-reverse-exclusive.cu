// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f16-n64-reverse-exclusive
//          64 float16 items, reverse, exclusive, float16 out
// plan     warp: threads 128, items 8, tiles 1, vectors 1, boundary 0, lanes 8
//          a row of 64 fits in 8 lane(s), 1 access(es) of 8 item(s) each
// target   sm_90
// content  sha256 aa82e99b40190cef of everything below this banner
// again    scanops generate sum-f16-n64-reverse-exclusive --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // float16
typedef unsigned short Output;  // float16
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: warp
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 64;  // of a line, in items
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 128;  // of a block
constexpr int kLanes = 8;  // neighbouring threads of a warp that scan a row
constexpr int kRows = 16;  // of a block
constexpr int kItems = 8;  // of an access
constexpr int kVectors = 1;  // accesses of a thread
constexpr int kRun = 8;  // consecutive items that a thread scans serially
constexpr int kRuns = 1;  // of a thread
constexpr int kOutItems = 8;  // of a store
constexpr int stripe = 64;  // items of one access of all lanes of a row
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

__device__ __forceinline__ Output output_of(State state) { return float_to_half(state); }

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

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

template <class Item, class Vector>
__device__ __forceinline__ void store_vector(Item* first, const Vector& y) {
    *reinterpret_cast<Vector*>(first) = y;
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
        y.item[place_of(k, kItems)] = output_of(k > 0 ? combine(prefix, s.item[k - 1]) : prefix);
    }
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, kLanes);
}

// Inclusive scan across the first `count` lanes.
template <int count = kLanes>
__device__ __forceinline__ State scan_lanes(State s, int lane) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const State older = shuffle_up(s, step);
        if (lane >= step) s = combine(older, s);
    }
    return s;
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, kLanes);
}

// The exclusive prefix of this lane's access, given that of the row's accesses; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane, int last = kLanes - 1) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, last));
    return prefix;
}

__global__ void __launch_bounds__(kThreads)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- `kLanes` lanes per row, and as many rows per block as it has threads for
    const int lane = threadIdx.x % kLanes;
    const long long line = (long long)blockIdx.x * kRows + threadIdx.x / kLanes;
    const bool live = line < lines;
    // scan position of this thread's first item
    const Position first = lane * kItems;
    const Input* input_at = input + line * length + memory_index(first, kItems, length);
    Output* const output_at = output + line * length + memory_index(first, kItems, length);

    // ---- load
    InputVector x[kVectors];
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = kReverse ? kVectors - 1 - n : n;
        x[j] = live ? load_input(input_at + along(j * stripe)) : InputVector{};
    }

    // ---- scan the items in their thread, then across the lanes
    Items s[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        s[j] = lift_items(x[j]);
    State p[kRuns];
    State t[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) t[j] = scan_lanes(scan_items(s[j]), lane);
    State before = identity();
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        p[j] = chain_lanes(before, t[j], lane);

    // ---- store
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = kReverse ? kVectors - 1 - n : n;
        if (!(live)) continue;
        OutputVector y;
        make_results(y, p[j], s[j]);
        store_vector(output_at + along(j * stripe), y);
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
    const long long blocks = (arguments->lines + kRows - 1) / kRows;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(kThreads);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines));
}
#endif
