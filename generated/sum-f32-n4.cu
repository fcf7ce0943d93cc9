// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n4
//          4 float32 items, float32 out
// plan     warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 1
//          a row of 4 items fits in 1 lane, each with 1 vector load of 4 items
// numbers  rule: warp
// target   sm_90
// content  sha256 80278174f911a569 of everything below this banner
// again    scanops generate sum-f32-n4 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: warp
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr bool kReverse = false;  // scan from the last item to the first
inline constexpr int kBlockThreads = 128;  // threads per block
inline constexpr int kItemsPerLoad = 4;  // items per vector load
inline constexpr int kRunItems = 4;  // consecutive items that a thread scans serially
inline constexpr bool kZeroFills = true;  // items that do not exist are 0
inline constexpr bool kExclusive = false;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kSerial = false;  // each result is computed from the one before it
inline constexpr bool kCompensates = false;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kAppends = false;  // a single item is appended by an operation of its own
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/early_begin.cuh"

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) { return older + newer; }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output output_of(State state) { return state; }

#include "headers/memory.cuh"
#include "headers/vectors.cuh"
#include "headers/vectors_in_scan_order.cuh"

typedef State ThreadState;  // of an item of a thread

__device__ __forceinline__ State empty_state() { return identity(); }

struct Items {  // states of a thread's consecutive items
    ThreadState item[kRunItems];
};

#include "headers/thread_scan.cuh"

struct Result {  // of one item
    Output y;
};
__device__ __forceinline__ Result result_of(State state) {
    return {output_of(state)};
}

#include "headers/thread_results.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads)
sum_f32_n4_warp(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines) {
    wait_for_predecessors();
    const long long line = (long long)blockIdx.x * kBlockThreads + threadIdx.x;
    const bool live = line < lines;
    Vector<Input> x = {};
    if (live) x = reinterpret_cast<const Vector<Input>*>(input)[line];
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k)
        s.item[k] = element(x.item[place_of(k, kRunItems)]);
    if constexpr (kExtends || !kSerial) scan_items(s);
    const State prefix = identity();
    Vector<Output> y;
    each_result(prefix, s, [&](int k, Result result) {
        y.item[place_of(k, kRunItems)] = result.y;
    });
    if (!live) return;
    reinterpret_cast<Vector<Output>*>(output)[line] = y;
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(sum_f32_n4_warp,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
