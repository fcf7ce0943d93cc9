// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n16384-transposed
//          16384 float32 items, transposed, float32 out
// plan     transposed: threads 256, items 32, tiles 64, vector 1, stages 3, blocks 2
//          lines of 16384 are strided in the input, contiguous in the output: tiles are transposed in shared memory
// numbers  rule: transposed
// target   sm_90
// content  sha256 9ca8cf5f85e7fa23 of everything below this banner
// again    scanops generate prod-f32-n16384-transposed --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: transposed
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 16384;  // items per line
inline constexpr bool kReverse = false;  // scan from the last item to the first
inline constexpr int kBlockThreads = 256;  // threads per block
inline constexpr int kBlockWarps = 8;  // warps per block
inline constexpr bool kToRows = true;  // results are contiguous along a line, else across lines
inline constexpr int kBlocksPerSm = 2;  // least resident blocks per multiprocessor
inline constexpr int kRunItems = 32;  // positions per thread and tile
inline constexpr int kThreadColumns = 1;  // adjacent lines per thread
inline constexpr int kLanes = 32;  // threads side by side across the lines
inline constexpr bool kPartialColumns = true;  // the last column tile may have fewer lines
inline constexpr bool kStridedColumns = false;  // a thread's lines are kLanes apart, and stored one by one
inline constexpr bool kRealigns = false;  // lines start between the boundaries of vector loads
inline constexpr bool kExchangesRows = true;  // lanes exchange items in shared memory
inline constexpr bool kLoops = true;  // a line has several tiles
inline constexpr int kStages = 3;  // tiles in the ring in shared memory
inline constexpr bool kZeroFills = false;  // items that do not exist are 0
inline constexpr bool kExclusive = false;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kUneven = false;  // the last tile of a line is partial
inline constexpr bool kSerial = false;  // each result is computed from the one before it
inline constexpr bool kCompensates = true;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kAppends = false;  // a single item is appended by an operation of its own
inline constexpr int kInner = 1;  // lines side by side in the output
inline constexpr int kStridedOperands = 4;  // operands that may have strides of their own
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr bool kCopiesAsync = true;  // the target has cp.async
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/dynamic_shared.cuh"
#include "headers/early_begin.cuh"
#include "headers/copy_intrinsics.cuh"

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
#include "headers/geometry.cuh"
#include "headers/operand_layout.cuh"

template <template <class> class Of>
struct Operands {
    Of<Input> x;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kFirst, 0, 0, 4>{}, packs.x...);
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
#include "headers/transposed_slabs.cuh"

template <class Item>
using Slabs = Slab<Item>[kStages][kBlockWarps];

struct Ring : Operands<Slabs> {  // multistage ring of tiles, by stage and warp: a warp reads what its lanes copied
};

#include "headers/transposed_ring.cuh"

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

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
prod_f32_n16384_transposed_transposed(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, const __grid_constant__ Geometry geometry, const Neighbours neighbours) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Position length = kLength;
    dynamic_shared(Ring, ring);
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_aggregates[kLoops ? 2 : 1][kBlockWarps][kLanes];

    // ---- a block scans kTileColumns adjacent lines
    const long long column_tiles = (neighbours.size + kTileColumns - 1) / kTileColumns;  // the last one may be partial
    const long long other = blockIdx.x / column_tiles;  // index of all other dimensions
    const long long first_line = blockIdx.x % column_tiles * kTileColumns;
    const int lines = (int)min(neighbours.size - first_line, (long long)kTileColumns);
    const long long line_step = kToRows ? neighbours.lines : 1;  // from a line to its neighbour
    const long long line = (other / line_step * neighbours.size + first_line) * line_step + other % line_step;
    const Place at = thread_position(line, lines, line_step, length);
    Sources from = sources_of(operands, at, line, geometry, neighbours, length);
    Outputs<PointerTo> to = outputs;
    for_each_output([&](auto& y) { y += at.item; }, to);
    [[maybe_unused]] const int lane = at.lane, warp = at.warp, place = at.in_tile;
    const int tiles_a_line = kLoops ? (int)((length + kTileItems - 1) / kTileItems) : 1;
    // the prefix of the first tile
    States carry = identities();
    if (kBlockWarps > 1 && kLoops && threadIdx.x < kLanes) warp_aggregates[0][0][place] = carry;

    // ---- prologue: issue the copies of the first tiles
    const auto copy_tile = [&](int tile) {
        if (tile < tiles_a_line) {
            copy(ring, tile % kStages, from, lines, length - at.first - (Position)tile * kTileItems);
            advance(from);
        }
        copy_async_commit();
    };
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) copy_tile(tile);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTileItems;  // scan position of the tile's first row
        copy_tile(tile + kStages - 1);
        copy_async_wait<kStages - 1>();
        if constexpr (kExchangesRows) __syncwarp();
        Items s = lift_items(staged(ring, tile % kStages, from));

        // ---- scan the rows of the thread, then across the slots of the warp
        const States inclusive = scan_lanes<kLanes>(scan_items(s), lane);
        const States inside = slot_prefix(inclusive, lane);
        const bool last_slot = lane >= kWarpThreads - kLanes;

        // ---- combine the totals of the warps before this one, in order
        States prefix = carry;
        if constexpr (kBlockWarps > 1) {
            auto& totals = warp_aggregates[tile % 2];
            if (last_slot && warp < kBlockWarps - 1) totals[warp + 1][place] = inclusive;
            __syncthreads();
            if constexpr (kLoops) prefix = totals[0][place];
            if constexpr (kSerial) {
#pragma unroll 1  // fewer instructions than a select or a branch for each of the warps
                for (int w = 1; w <= warp; ++w) prefix = combine(prefix, totals[w][place]);
            } else {
#pragma unroll
                for (int w = 1; w < kBlockWarps; ++w)
                    if (w <= warp) prefix = combine(prefix, totals[w][place]);
            }
            if (kLoops && last_slot && warp == kBlockWarps - 1)  // the prefix of the next tile
                warp_aggregates[(tile + 1) % 2][0][place] = combine(prefix, inclusive);
        } else {
            carry = combine(carry, of_last_slot(inclusive));
        }
        if constexpr (kSlots > 1) prefix = combine(prefix, inside);

        // ---- store
        Outputs<Rows> rows;
        each_result(prefix, s, [&](int k, const Results& results) {
            for_each_output([&](auto& all, auto& result) { all.row[k] = result; }, rows, results);
        });
        store_slab<4>(*reinterpret_cast<Slab<Output>*>(&ring.x[tile % kStages][warp]), to.y, rows.y,
            line_step * length, lines, length - at.first - begin);
        advance(to);
        if constexpr (kExchangesRows) __syncwarp();  // all lanes have read what the next copies overwrite
    }
}

static_assert((sizeof(Ring) + 15) / 16 * 16 == 98304, "shared memory as planned");

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    cudaError_t error =
        cudaFuncSetAttribute(prod_f32_n16384_transposed_transposed,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(prod_f32_n16384_transposed_transposed,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
