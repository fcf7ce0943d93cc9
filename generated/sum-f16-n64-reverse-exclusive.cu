// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f16-n64-reverse-exclusive
//          64 float16 items, reverse, exclusive, float16 out
// plan     warp: threads 128, items 8, tiles 1, vectors 1, boundary 0, lanes 8
//          a row of 64 items fits in 8 lanes, each with 1 vector load of 8 items
// numbers  rule: warp
// target   sm_90
// content  sha256 c4603d402c1e97a3 of everything below this banner
// again    scanops generate sum-f16-n64-reverse-exclusive --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef unsigned short Input;  // float16
typedef unsigned short Output;  // float16
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: warp
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 64;  // items per line
inline constexpr bool kReverse = true;  // scan from the last item to the first
inline constexpr int kBlockThreads = 128;  // threads per block
inline constexpr int kLanes = 8;  // neighbouring threads of a warp that scan a row
inline constexpr int kItemsPerLoad = 8;  // items per vector load
inline constexpr int kThreadLoads = 1;  // vector loads per thread
inline constexpr int kRunItems = 8;  // consecutive items that a thread scans serially
inline constexpr int kThreadRuns = 1;  // runs per thread
inline constexpr int kItemsPerStore = 8;  // items per vector store
inline constexpr int kLaneBits = 3;  // log2 of the lanes per row
inline constexpr int kBoundaryItems = 0;  // items; vector loads of misaligned rows start at multiples of this
inline constexpr bool kChecksEnd = false;  // vector loads may lie past the end of a row
inline constexpr bool kGuards = false;  // vector loads may reach past a row's ends
inline constexpr bool kInRuns = false;  // lanes exchange vectors, so that a thread's items are consecutive
inline constexpr bool kZeroFills = true;  // items that do not exist are 0
inline constexpr bool kExclusive = true;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kAligned = true;  // dense operands start on a 16-byte boundary
inline constexpr bool kSerial = false;  // each result is computed from the one before it
inline constexpr bool kCompensates = false;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kChoosesLanes = false;  // the length chooses the lanes or stripes of a row
inline constexpr bool kLanesDown = false;  // the lane before a lane in scan order is the next one
inline constexpr bool kAppends = false;  // a single item is appended by an operation of its own
inline constexpr bool kSelects = false;  // lanes select each field of a state instead of branching
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
inline constexpr bool kConvertsBfloat = true;  // the target converts to bfloat16
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/half_types.cuh"
#include "headers/early_begin.cuh"

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) { return older + newer; }

__device__ __forceinline__ State element(Input x) { return lift(half_to_float(x)); }

__device__ __forceinline__ Output output_of(State state) { return float_to_half(state); }

#include "headers/memory.cuh"
#include "headers/vectors.cuh"
#include "headers/vectors_in_scan_order.cuh"
#include "headers/operand_layout.cuh"

template <template <class> class Of>
struct Operands {
    Of<Input> x;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kDense | kFirst, 0, 0>{}, packs.x...);
}

template <template <class> class Of>
struct Outputs {
    Of<Output> y;
};

// Call use(members of packs...) for each output.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_output(Use use, Packs&... packs) {
    use(packs.y...);
}

#include "headers/row_items.cuh"

struct Accesses : Operands<Loads> {  // how a thread addresses its items of a tile
};

typedef State ThreadState;  // of an item of a thread

__device__ __forceinline__ State empty_state() { return identity(); }

struct Items {  // states of a thread's consecutive items
    ThreadState item[kRunItems];
};

// States of the items of run j.
__device__ __forceinline__ Items lift_items(const Accesses& a, int j) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        const int access = (j * kRunItems + k) / kItemsPerLoad, place = place_of(k % kItemsPerLoad, kItemsPerLoad);
        s.item[k] = element(a.x[access].item[place]);
    }
    return s;
}

__device__ __forceinline__ Result result_of(State state) {
    return {output_of(state)};
}

template <class Exchange, class... States>
__device__ __forceinline__ State exchange_parts(Exchange exchange, const States&... s) {
    return exchange(s...);
}

#include "headers/thread_scan.cuh"
#include "headers/thread_results.cuh"
#include "headers/row_results.cuh"
#include "headers/lanes.cuh"
#include "headers/row_part.cuh"
#include "headers/rows_dense.cuh"
#include "headers/row_addresses.cuh"
#include "headers/row_registers.cuh"
#include "headers/row_access.cuh"
#include "headers/row_load.cuh"
#include "headers/row_scan.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads)
sum_f16_n64_reverse_exclusive_warp(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Geometry geometry = {};
    constexpr Position length = kLength;
    constexpr int lane_bits = kLaneBits;
    // ---- `1 << lane_bits` lanes per row, and as many rows per block as it has threads for
    const int lanes = 1 << lane_bits;
    const int lane = threadIdx.x & (lanes - 1);
    const long long line = (long long)blockIdx.x * (kBlockThreads >> lane_bits) + (threadIdx.x >> lane_bits);
    const Position first = lane * kItemsPerLoad;
    RowPart part = {first, length, length, lane};
    part.live = line < lines;
    if constexpr (kChoosesLanes) {
        part.lanes = lanes;
        part.last = threadIdx.x % kWarpThreads | (lanes - 1);
        part.step = lanes * kItemsPerLoad;  // items of one access of each lane
    }
    const Row row = row_of(operands, outputs, line, part, length, geometry);

    // ---- load
    Accesses a = load(part, row, geometry);

    // ---- scan the items in their thread, then across the lanes
    Items s[kThreadRuns];
#pragma unroll
    for (int j = 0; j < kThreadRuns; ++j)
        s[j] = lift_items(a, j);
    State p[kThreadRuns];
    scan_across(p, s, identity(), part);

    // ---- store
#pragma unroll
    for (int n = 0; n < kThreadLoads; ++n) {
        const int j = place_of(n, kThreadLoads);
        if (part.reaches(j)) store(part, row, j, make_results(p[j], s[j]));
    }
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(sum_f16_n64_reverse_exclusive_warp,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
