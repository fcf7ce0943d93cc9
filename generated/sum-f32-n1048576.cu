// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n1048576
//          1048576 float32 items, float32 out
// plan     split: threads 512, items 4, tiles 128, vectors 4, boundary 0, one_block_per_sm False
//          few rows of 1048576: each is split over several blocks at once
// numbers  measured: split, items of a row up to 1048576, any GPU
//          tuned: threads, vectors; the others follow from the spec
// target   sm_90
// content  sha256 40e8950ab2f80d64 of everything below this banner
// again    scanops generate sum-f32-n1048576 --target sm_90 --lines 1

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: split
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 1048576;  // items per line
inline constexpr bool kReverse = false;  // scan from the last item to the first
inline constexpr int kBlockThreads = 512;  // threads per block
inline constexpr int kBlockWarps = 16;  // warps per block
inline constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
inline constexpr int kItemsPerLoad = 4;  // items per vector load
inline constexpr int kThreadLoads = 4;  // vector loads per thread
inline constexpr int kRunItems = 4;  // consecutive items that a thread scans serially
inline constexpr int kThreadRuns = 4;  // runs per thread
inline constexpr int kItemsPerStore = 4;  // items per vector store
inline constexpr int kStripeItems = 128;  // items that the lanes of a row load with one vector load each
inline constexpr int kStripes = 4;  // vector loads per lane of a warp
inline constexpr int kTileItems = 8192;  // items per tile
inline constexpr int kBoundaryItems = 0;  // items; vector loads of misaligned rows start at multiples of this
inline constexpr int kMaxLead = 0;  // most items by which a vector load starts before its row
inline constexpr bool kChecksEnd = false;  // vector loads may lie past the end of a row
inline constexpr bool kGuards = false;  // vector loads may reach past a row's ends
inline constexpr bool kInRuns = false;  // lanes exchange vectors, so that a thread's items are consecutive
inline constexpr bool kZeroFills = true;  // items that do not exist are 0
inline constexpr bool kExclusive = false;  // a result is the prefix before its item
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
inline constexpr int kStatusWords = 1;  // status words of a tile
inline constexpr bool kLinked = false;  // other GPUs read status words
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

// Number of a tile among those of all rows. Where the length is an argument, the launcher refuses 2^31 tiles or more,
// so that the division by the tiles of a row takes 32-bit numbers.
typedef long long TileNumber;

#include "headers/row_look_back.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads)
sum_f32_n1048576_split(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, unsigned long long* workspace) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Geometry geometry = {};
    constexpr Position length = kLength;
    constexpr int stripes = kStripes;
    const TileStatus tile_status = {workspace, workspace + 2};
    __shared__ unsigned epoch;  // epoch of this launch
    const unsigned long long ticket = threadIdx.x == 0 ? take_ticket(tile_status) : 0;  // arrives while the tile is loaded
    __shared__ State warp_aggregate[kBlockWarps];
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const int warps = kChoosesLanes ? blockDim.x / kWarpThreads : kBlockWarps, warp_items = stripes * kStripeItems;

    // ---- one tile per block: blocks start in the order of their index, so preceding tiles are resident, or done
    __shared__ State group_aggregate[kBlockWarps];
    const TileNumber tile = blockIdx.x;
    const int tiles_a_line = tiles_of(length);
    const long long line = tile / tiles_a_line;
    const int index = (int)(tile % tiles_a_line);  // tile index within the row
    const Position first = index * (Position)kTileItems + warp * warp_items + lane * kItemsPerLoad;
    RowPart part = {first, length, length, lane};
    if constexpr (kChoosesLanes) {
        const Position end = first + warp_items - lane * kItemsPerLoad;
        part.end = end < length ? end : length;
        part.accesses = stripes;
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
    const State total = scan_across(p, s, identity(), part);

    // ---- totals of the warps
    if (lane == kWarpThreads - 1) warp_aggregate[warp] = total;
    if (threadIdx.x == 0) {
        epoch = epoch_of(ticket);
        advance_epoch(tile_status, ticket, gridDim.x - 1);
    }
    __syncthreads();
    const State totals = scan_lanes<kBlockWarps>(lane < warps ? warp_aggregate[lane] : identity(), lane);
    State prefix = warp_prefix(totals, warp);
    if (threadIdx.x == kBlockWarps - 1) publish(tile_status, epoch, tile, totals);

    // ---- look-back: fold preceding totals in groups of 32, in a fixed order; each warp waits for one group
    State base = identity();
    for (int group = 0; group * kWarpThreads < index; group += kBlockWarps) {
        wait_for_groups(group_aggregate, tile_status, epoch, line * tiles_a_line, group, index);
        for (int w = 0; w < kBlockWarps && (group + w) * kWarpThreads < index; ++w) base = combine(base, group_aggregate[w]);
    }
    prefix = combine(base, prefix);
#pragma unroll
    for (int j = 0; j < kThreadRuns; ++j) p[j] = combine(prefix, p[j]);

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
        cudaLaunchKernel(sum_f32_n1048576_split,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
