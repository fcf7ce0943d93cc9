// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n4
//          4 float32 items, float32 out
// plan     warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 1
//          a row of 4 items fits in 1 lane, each with 1 vector load of 4 items
// numbers  rule: warp
// target   sm_90
// content  sha256 1f042e72e098e0ca of everything below this banner
// again    scanops generate sum-f32-n4 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32

typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: warp
constexpr int kWarpThreads = 32;
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kBlockThreads = 128;  // threads per block
constexpr int kItemsPerLoad = 4;  // items per vector load
constexpr int kRunItems = 4;  // consecutive items that a thread scans serially
constexpr bool kExclusive = false;  // a result is the prefix before its item
constexpr bool kSerial = false;  // each result is computed from the one before it
constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }
__device__ __forceinline__ State lift(Value x) { return x; }
__device__ __forceinline__ State combine(State older, State newer) { return older + newer; }
__device__ __forceinline__ State element(Input x) { return lift(x); }
__device__ __forceinline__ Output output_of(State state) { return state; }
constexpr int kMostAccessBytes = 16;  // of a load or store of a thread

// ---- a vector load holds items in memory order, Items hold states in scan order
template <class Item, int count = kItemsPerLoad>
struct alignas(count * sizeof(Item)) Vector {
    static_assert((count & (count - 1)) == 0 && sizeof(Item) * count <= kMostAccessBytes, "an access is one instruction");
    Item item[count];
};

// Where a vector of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }

typedef State ThreadState;  // of an item of a thread

struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
};

// The total of a thread's consecutive items; leaves their inclusive scan in place.
__device__ __forceinline__ ThreadState scan_items(Items& s) {
    ThreadState total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) total = s.item[k] = combine(total, s.item[k]);
    return total;
}

struct Result {  // of one item
    Output y;
};

__device__ __forceinline__ Result result_of(State state) {
    return {output_of(state)};
}

// Call use(k, result) for each item, in order, given the prefix before the items.
template <class Use>
__device__ __forceinline__ void each_result(const ThreadState& prefix, const Items& s, Use use) {
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = combine(prefix, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
sum_f32_n4_warp(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines) {
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
