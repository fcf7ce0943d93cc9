// scanops: y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))
//
// spec     logcumsumexp-f32-n1024
//          1024 float32 items, float32 out
// plan     block: threads 64, items 4, tiles 1, vectors 4, boundary 0, one_block_per_sm False
//          a row of 1024 fits in the registers of one block: one tile, no loop
// numbers  measured: logcumsumexp-f32-n1024
//          tuned: vectors; the others follow from the spec
// target   sm_90
// content  sha256 a9f066755777875f of everything below this banner
// again    scanops generate logcumsumexp-f32-n1024 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value high;
    Value rest;
};

// ---- the plan: block
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 1024;  // items per line
inline constexpr bool kReverse = false;  // scan from the last item to the first
inline constexpr int kBlockThreads = 64;  // threads per block
inline constexpr int kBlockWarps = 2;  // warps per block
inline constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
inline constexpr int kItemsPerLoad = 4;  // items per vector load
inline constexpr int kThreadLoads = 4;  // vector loads per thread
inline constexpr int kRunItems = 16;  // consecutive items that a thread scans serially
inline constexpr int kThreadRuns = 1;  // runs per thread
inline constexpr int kItemsPerStore = 4;  // items per vector store
inline constexpr int kBankPeriod = 4;  // vector loads of a run after which shared memory banks repeat
inline constexpr int kStripeItems = 128;  // items that the lanes of a row load with one vector load each
inline constexpr int kStripes = 4;  // vector loads per lane of a warp
inline constexpr int kBoundaryItems = 0;  // items; vector loads of misaligned rows start at multiples of this
inline constexpr bool kChecksEnd = false;  // vector loads may lie past the end of a row
inline constexpr bool kGuards = false;  // vector loads may reach past a row's ends
inline constexpr bool kInRuns = true;  // lanes exchange vectors, so that a thread's items are consecutive
inline constexpr int kExchangedBytes = 16;  // bytes of the widest vector that lanes exchange
inline constexpr bool kZeroFills = true;  // items that do not exist are 0
inline constexpr bool kExclusive = false;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kAligned = true;  // dense operands start on a 16-byte boundary
inline constexpr bool kSerial = true;  // each result is computed from the one before it
inline constexpr bool kCompensates = false;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = true;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kChoosesLanes = false;  // the length chooses the lanes or stripes of a row
inline constexpr bool kLanesDown = false;  // the lane before a lane in scan order is the next one
inline constexpr bool kAppends = true;  // a single item is appended by an operation of its own
inline constexpr bool kSelects = true;  // lanes select each field of a state instead of branching
inline constexpr bool kSeveralTiles = false;  // a line has several tiles
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/early_begin.cuh"
#include "headers/functions.cuh"
#include "headers/functions_float.cuh"

// ---- operator logcumsumexp: y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))
__device__ __forceinline__ State identity() { return {-infinity(), -1}; }

__device__ __forceinline__ State lift(Value x) { return {x, 0}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.high = fmax(older.high, newer.high);
    s.rest = fma(1 + (older.high >= newer.high ? newer.rest : older.rest), ratio(older.high, newer.high),
        older.high >= newer.high ? older.rest : newer.rest);
    return s;
}

__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.high = fmax(older.high, newer.high);
    s.rest = add_term(older.rest, newer.high > older.high, ratio(older.high, newer.high));
    return s;
}

__device__ __forceinline__ State extend(State older, State newer) {
    State s;
    s.high = older.high;
    s.rest = older.rest + near_exp(newer.high, older.high);
    return s;
}

// The state of a result: `newer`, made by extend, ends with its item; `older` is the prefix before it.
__device__ __forceinline__ State behind(State older, State newer) {
    State s;
    s.high = older.rest < 0 ? newer.high : older.high;
    s.rest = fma(exp_difference(newer.high, older.rest < 0 ? newer.high : older.high), newer.rest,
        older.rest + exp_difference(newer.high, older.rest < 0 ? newer.high : older.high));
    return s;
}

// Whether extend may continue from a state, and whether its total is valid at the end.
__device__ __forceinline__ bool holds([[maybe_unused]] State state) { return true; }

__device__ __forceinline__ bool is_right(State state) { return state.rest < 0x1p64f; }

__device__ __forceinline__ bool is_right_behind(State older, State newer) { return is_right(behind(older, newer)); }

// A total made by extend, as combine takes it.
__device__ __forceinline__ State settle(State state) { return {state.high, state.rest}; }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output output_of(State state) { return plus_log(state.high, state.rest); }

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
    ThreadState sum[kRunItems];  // totals of the first items by extend: set by scan_items
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
    return {exchange(s.high...), exchange(s.rest...)};
}

#include "headers/thread_scan.cuh"
#include "headers/thread_results.cuh"
#include "headers/row_results.cuh"
#include "headers/lanes.cuh"
#include "headers/row_part.cuh"
#include "headers/rows_dense.cuh"
#include "headers/row_addresses.cuh"
#include "headers/row_exchange.cuh"
#include "headers/row_registers.cuh"
#include "headers/row_access.cuh"
#include "headers/row_load.cuh"
#include "headers/row_scan.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads)
logcumsumexp_f32_n1024_block(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Geometry geometry = {};
    constexpr Position length = kLength;
    constexpr int stripes = kStripes;
    __shared__ State warp_aggregate[kBlockWarps];
    __shared__ Exchanged exchanged[kBlockWarps][kWarpThreads * kThreadLoads];
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const int warps = kChoosesLanes ? blockDim.x / kWarpThreads : kBlockWarps, warp_items = stripes * kStripeItems;

    // ---- one row per block; a warp holds `stripes` stripes of it
    const long long line = blockIdx.x;
    const Position first = warp * warp_items + lane * kItemsPerLoad;
    RowPart part = {first, length, length, lane};
    if constexpr (kChoosesLanes) {
        const Position end = first + warp_items - lane * kItemsPerLoad;
        part.end = end < length ? end : length;
        part.accesses = stripes;
    }
    const Row row = row_of(operands, outputs, line, part, length, geometry);

    // ---- load
    Accesses a = load(part, row, geometry);

    // ---- lanes exchange accesses: from here on a thread holds `kRunItems` consecutive items
    exchange_operands(a, exchanged[warp], lane);

    // ---- scan the items in their thread, then across the lanes
    Items s[kThreadRuns];
#pragma unroll
    for (int j = 0; j < kThreadRuns; ++j)
        s[j] = lift_items(a, j);
    State p[kThreadRuns];
    const State total = scan_across(p, s, identity(), part);

    // ---- totals of the warps
    if (lane == kWarpThreads - 1) warp_aggregate[warp] = total;
    __syncthreads();
    const State totals = scan_lanes<kBlockWarps>(lane < warps ? warp_aggregate[lane] : identity(), lane);
    State prefix = warp_prefix(totals, warp);
#pragma unroll
    for (int j = 0; j < kThreadRuns; ++j) p[j] = combine(prefix, p[j]);

    // ---- store
    Results r = make_results(p[0], s[0]);
    exchange_results(r, exchanged[warp], lane);
#pragma unroll
    for (int n = 0; n < kThreadLoads; ++n) {
        const int j = place_of(n, kThreadLoads);
        if (part.reaches(j)) store(part, row, j, r);
    }
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(logcumsumexp_f32_n1024_block,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
