// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f64-n65536-inner6-exclusive
//          65536 float64 items of stride 6, exclusive, float64 out
// plan     columns_lookback: threads 128, items 16, tiles 64, columns 4, vector 2, strided_columns False, stages 0, blocks 4, abreast 256, group 32, stretch 4
//          columns of 65536: their tiles are split over all multiprocessors
// numbers  rule: columns_lookback
// target   sm_90
// content  sha256 185b7c6f8f361cce of everything below this banner
// again    scanops generate prod-f64-n65536-inner6-exclusive --target sm_90 --lines 6

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef double Input;  // float64
typedef double Output;  // float64
typedef double Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: columns_lookback
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 65536;  // items per line
inline constexpr bool kReverse = false;  // scan from the last item to the first
inline constexpr int kBlockThreads = 128;  // threads per block
inline constexpr int kBlockWarps = 4;  // warps per block
inline constexpr int kBlocksPerSm = 4;  // least resident blocks per multiprocessor
inline constexpr int kRunItems = 16;  // rows per thread and tile
inline constexpr int kThreadColumns = 2;  // columns per thread
inline constexpr int kLanes = 2;  // threads side by side across a column tile
inline constexpr int kColumnTiles = 2;  // column tiles across the columns
inline constexpr bool kPartialColumns = true;  // the last tile has fewer columns
inline constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
inline constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
inline constexpr bool kExchangesRows = false;  // lanes exchange rows in shared memory
inline constexpr int kTilesAbreast = 256;  // column tiles whose tiles are claimed together
inline constexpr int kGroupTiles = 32;  // tiles per group
inline constexpr int kSupergroupGroups = 4;  // groups per group of groups
inline constexpr bool kFoldsTiles = true;  // a tile folds the totals of tiles
inline constexpr bool kFoldsGroups = true;  // a tile folds the totals of groups
inline constexpr bool kChainsPrefixes = false;  // inclusive prefixes are chained over groups of groups
inline constexpr bool kZeroFills = false;  // items that do not exist are 0
inline constexpr bool kExclusive = true;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kUneven = false;  // the last tile of a line is partial
inline constexpr bool kSeveralOperands = false;  // each item is made of several operands
inline constexpr bool kSerial = false;  // each result is computed from the one before it
inline constexpr bool kCompensates = true;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kAppends = false;  // a single item is appended by an operation of its own
inline constexpr int kInner = 6;  // columns side by side: the stride of the scanned dimension
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr int kStatusWords = 2;  // status words of a tile
inline constexpr bool kLinked = false;  // other GPUs read status words
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/early_begin.cuh"

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) { return older * newer; }

// Compensation of a product or a sum: the rounding errors of its steps, whose sum a thread's total regains.
__device__ __forceinline__ Value lose(Value lost, Value older, Value newer) {
    return fma(lost, newer, fma(older, newer, -(older * newer)));
}

// Infinities and NaN carry no rounding errors; -0 keeps its sign.
__device__ __forceinline__ Value regain(Value total, Value lost) {
    return total - total == 0 && total != 0 ? total + lost : total;  // finite and not 0
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output output_of(State state) { return state; }

#include "headers/memory.cuh"
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

#include "headers/column_tile.cuh"

struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
};

#include "headers/column_functions.cuh"
#include "headers/column_access.cuh"
#include "headers/column_place.cuh"
#include "headers/columns_dense.cuh"
#include "headers/column_sources.cuh"
#include "headers/column_loads.cuh"

// ---- the items of a thread
// The states of a tile's rows.
__device__ __forceinline__ Items lift_items(const TileRows& rows) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k)
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            s.item[k].column[c] = element(rows.x.row[k].column[c]);
    return s;
}

#include "headers/thread_scan.cuh"

// The results of a row, by the states of its columns.
__device__ __forceinline__ Results result_of(const States& states) {
    Results results;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
        results.y.column[c] = output_of(states.column[c]);
    }
    return results;
}

#include "headers/thread_results.cuh"

template <class Exchange, class... States>
__device__ __forceinline__ State exchange_parts(Exchange exchange, const States&... s) {
    return exchange(s...);
}

#include "headers/column_lanes.cuh"
#include "headers/tile_status.cuh"
#include "headers/lookback_tree.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
prod_f64_n65536_inner6_exclusive_columns_lookback(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines, unsigned long long* workspace) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Geometry geometry = {};
    constexpr Position length = kLength;
    const TileStatus tile_status = {workspace, workspace + 2};
    __shared__ States warp_aggregate[kBlockWarps][kLanes];  // later the warp's exclusive prefix in the tile
    __shared__ States ahead[kLanes];               // the carry-in, later the tile's exclusive prefix
    __shared__ unsigned epoch;                    // epoch of this launch

    // ---- one tile per block, by rows of tiles of kTilesAbreast column tiles: blocks start in the order of their index,
    // so the tiles above are resident, or done
    const unsigned long long ticket = threadIdx.x == 0 ? take_ticket(tile_status) : 0;  // arrives while the tile is loaded
    const int tiles_a_line = (int)((length + kTileItems - 1) / kTileItems);
    const unsigned column_tiles = (unsigned)(lines / kInner) * kColumnTiles;
    const unsigned together = (unsigned)min((long long)kTilesAbreast * tiles_a_line, kMostBlocks);  // tiles of these
    const unsigned first_column_tile = blockIdx.x / together * kTilesAbreast;
    const unsigned abreast = min(column_tiles - first_column_tile, (unsigned)kTilesAbreast);
    const unsigned column_tile = first_column_tile + blockIdx.x % together % abreast;
    const int tile = blockIdx.x % together / abreast;  // index in its column tile
    const Place at = thread_position(column_tile, (Position)tile * kTileItems, length);
    const int lane = at.lane, warp = at.warp, place = at.in_tile;
    const Sources from = sources_of(operands, at, geometry, length, lines, length);

    // ---- load and scan the rows of the thread, then across the slots of the warp
    const TileRows rows = load(from, items_in(at.live), at.there);
    Items s = lift_items(rows);
    const States inclusive = scan_lanes<kLanes>(scan_items(s), lane);
    const States inside = slot_prefix(inclusive, lane);
    if (lane >= kWarpThreads - kLanes) warp_aggregate[warp][place] = inclusive;
    if (threadIdx.x < kLanes) ahead[place] = identities();
    if (threadIdx.x == 0) epoch = epoch_of(ticket), advance_epoch(tile_status, ticket, gridDim.x - 1);
    __syncthreads();

    // ---- look-back
    const auto carry_of = [&](int folded, bool) { return column_of(ahead, folded); };
    if (warp < kFoldWarps) look_back(tile_status, epoch, column_tile, tile, tiles_a_line, warp_aggregate, ahead, carry_of);
    __syncthreads();

    // ---- store
    Outputs<PointerTo> to = outputs;
    for_each_output([&](auto& y) { y += at.item; }, to);
    States prefix = combine(ahead[place], warp_aggregate[warp][place]);
    if constexpr (kSlots > 1) prefix = combine(prefix, inside);
    each_result(prefix, s, [&](int k, const Results& results) {
        store_row(to, k, results, at.live, at.there);
    });
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(prod_f64_n65536_inner6_exclusive_columns_lookback,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
