// scanops: y[i] = m[i] ? x[i] + s[i-1] : 0, s[i] = (m[i] ? g[i] : 1) * (x[i] + s[i-1]); z[i] = y[i] * v[i]
//
// spec     linear_gradient-f32-n2048-inner64-sums1-gate_f32-saved_f32-reverse-exclusive-results_saved-line_gate
//          2048 float32 items of stride 64, a float32 gate, saved float32 items, reverse, exclusive, results_saved, line_gate, float32 out
// plan     columns: threads 256, items 8, tiles 16, columns 64, vector 4, strided_columns False, stages 2, blocks 1
//          the scanned dimension has stride 64: 64 neighbouring columns per block
// numbers  measured: columns gradient, any GPU
//          tuned: threads, items, columns, vector, strided_columns, stages, blocks; the others follow from the spec
// target   sm_90
// content  sha256 8e14a9642f12ca42 of everything below this banner
// again    scanops generate linear_gradient-f32-n2048-inner64-sums1-gate_f32-saved_f32-reverse-exclusive-results_saved-line_gate --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef float Input;  // float32
typedef float Gate;  // float32
typedef float Saved;  // float32
typedef float Output;  // float32
typedef float Sum;  // of results over a line
struct Second {  // a second result; a type distinct from Output
    Sum value;
};
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
    Value item;
    Value before;
    int keep;
};

// ---- the plan: columns
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 2048;  // items per line
inline constexpr bool kReverse = true;  // scan from the last item to the first
inline constexpr int kBlockThreads = 256;  // threads per block
inline constexpr int kBlockWarps = 8;  // warps per block
inline constexpr int kBlocksPerSm = 1;  // least resident blocks per multiprocessor
inline constexpr int kRunItems = 8;  // rows per thread and tile
inline constexpr int kThreadColumns = 4;  // columns per thread
inline constexpr int kLanes = 16;  // threads side by side across a column tile
inline constexpr int kColumnTiles = 1;  // column tiles across the columns
inline constexpr bool kPartialColumns = false;  // the last tile has fewer columns
inline constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
inline constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
inline constexpr bool kExchangesRows = false;  // lanes exchange rows in shared memory
inline constexpr int kStages = 2;  // tiles in the ring in shared memory
inline constexpr int kLineSums = 1;  // results that are summed over lines
inline constexpr bool kLoops = true;  // a column has several tiles
inline constexpr bool kZeroFills = false;  // items that do not exist are 0
inline constexpr bool kExclusive = true;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kUneven = false;  // the last tile of a line is partial
inline constexpr bool kSerial = true;  // each result is computed from the one before it
inline constexpr bool kCompensates = false;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = true;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kAppends = true;  // a single item is appended by an operation of its own
inline constexpr int kInner = 64;  // columns side by side: the stride of the scanned dimension
inline constexpr int kStridedOperands = 4;  // operands that may have strides of their own
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr bool kCopiesAsync = true;  // the target has cp.async
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/dynamic_shared.cuh"
#include "headers/early_begin.cuh"
#include "headers/copy_intrinsics.cuh"

// ---- operator linear_gradient: y[i] = m[i] ? x[i] + s[i-1] : 0, s[i] = (m[i] ? g[i] : 1) * (x[i] + s[i-1]); z[i] = y[i] * v[i]
__device__ __forceinline__ State identity() { return {1, 0, 0, 0, 0}; }

__device__ __forceinline__ State lift(Value x, Value g, Value v, bool m) {
    return {(Value)(m ? g : 1), (Value)((m ? g : 1) * x), x, (Value)v, (int)m};
}

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = older.value == 0 ? newer.value : newer.gate * older.value + newer.value;
    s.item = newer.item;
    s.before = newer.before;
    s.keep = newer.keep;
    return s;
}

__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = newer.gate * older.value + newer.value;
    s.item = newer.item;
    s.before = newer.before;
    s.keep = newer.keep;
    return s;
}

// Combine an item with the prefix before it.
__device__ __forceinline__ State within(State before, [[maybe_unused]] State own) {
    before.item = own.item;
    before.before = own.before;
    before.keep = own.keep;
    return before;
}

__device__ __forceinline__ State element(Input x, Gate g, Saved v, bool last) { return lift(x, g, last ? 0 : v, true); }

__device__ __forceinline__ Output output_of(State state) { return state.keep ? state.item + state.value : 0; }

__device__ __forceinline__ Second second_of(State state) {
    return {state.keep ? (state.item + state.value) * state.before : 0};
}

#include "headers/memory.cuh"
#include "headers/geometry.cuh"
#include "headers/operand_layout.cuh"

template <template <class> class Of>
struct Operands {
    Of<Input> x;
    Of<Saved> v;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kDense | kFirst, 0, 0>{}, packs.x...);
    use(OperandLayout<kDense, 0, 1>{}, packs.v...);
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

struct LineItems {  // of the thread's columns, of operands with one item for the whole line
    Access<Gate> g;
};

struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
};

#include "headers/column_functions.cuh"
#include "headers/column_access.cuh"
#include "headers/column_sums.cuh"
#include "headers/column_place.cuh"
#include "headers/columns_strided.cuh"
#include "headers/column_sources.cuh"
#include "headers/column_ring_own.cuh"
#include "headers/column_ring.cuh"
#include "headers/column_copy.cuh"
#include "headers/column_staged.cuh"

// ---- the items of a thread
struct ItemContext {
    Position rest;  // items from the first of them to the line's end
};

// The states of a tile's rows.
__device__ __forceinline__ Items lift_items(const TileRows& rows, const LineItems& own, const ItemContext& at) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k)
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            s.item[k].column[c] = element(rows.x.row[k].column[c], own.g.column[c], rows.v.row[k].column[c], k == at.rest - 1);
    return s;
}

#include "headers/thread_scan.cuh"

// The results of a row, by the states of its columns.
__device__ __forceinline__ SummedResults result_of(const States& states) {
    SummedResults results;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
        results.y.column[c] = output_of(states.column[c]);
        results.to_add[0].column[c] = second_of(states.column[c]).value;
    }
    return results;
}

#include "headers/thread_results.cuh"

template <class Exchange, class... States>
__device__ __forceinline__ State exchange_parts(Exchange exchange, const States&... s) {
    return {exchange(s.gate...), exchange(s.value...), {}, {}, {}};
}

#include "headers/column_lanes.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
linear_gradient_f32_n2048_inner64_sums1_gate_f32_saved_f32_reverse_exclusiv_columns(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, const Gate* gate, const Saved* saved, Output* output, Sum* line_sums, const
    __grid_constant__ Geometry geometry, long long lines) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input, saved};
    const Outputs<PointerTo> outputs = {output};
    constexpr Position length = kLength;
    dynamic_shared(Ring, ring);
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_aggregates[kLoops ? 2 : 1][kBlockWarps][kLanes];

    // ---- a block scans the columns of one column tile
    const Place at = thread_position(blockIdx.x, 0, length);
    Sources from = sources_of(operands, at, geometry, length, lines, length);
    Outputs<PointerTo> to = outputs;
    for_each_output([&](auto& y) { y += at.item; }, to);
    [[maybe_unused]] const int lane = at.lane, warp = at.warp, place = at.in_tile;
    const int tiles_a_line = kLoops ? (int)((length + kTileItems - 1) / kTileItems) : 1;
    __shared__ WarpSums sums_of_warps[kBlockWarps];
    Sums sums = {};  // of the thread's rows
    // the prefix of the first tile
    States carry = identities();
    if (kBlockWarps > 1 && kLoops && threadIdx.x < kLanes) warp_aggregates[0][0][place] = carry;

    // ---- prologue: issue the copies of the first tiles
    const auto copy_tile = [&](int tile) {
        if (tile < tiles_a_line) {
            copy(ring, tile % kStages, from, items_in(at.live) - (Position)tile * kTileItems);
            advance(from);
        }
        copy_async_commit();
    };
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) copy_tile(tile);
    __shared__ LineItems of_lines[kLanes];
    if (threadIdx.x < kLanes) {
        of_lines[at.in_tile].g = line_items(gate, at, geometry, 2);
    }
    __syncthreads();
    const LineItems own = of_lines[at.in_tile];

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTileItems;  // scan position of the tile's first row
        copy_tile(tile + kStages - 1);
        const ItemContext at_rows = {length - (at.scanned + begin)};
        copy_async_wait<kStages - 1>();
        if constexpr (kExchangesRows) __syncwarp();
        Items s = lift_items(staged(ring, tile % kStages, from), own, at_rows);

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
        each_result(prefix, s, [&](int k, const SummedResults& results) {
            store_row(to, k, results, at.live - begin, at.there);
            add_row(sums, k, results, length - at.scanned - begin);
        });
        advance(to);
        if constexpr (kExchangesRows) __syncwarp();  // all lanes have read what the next copies overwrite
    }
    store_sums(line_sums + at.line, lines, sums, sums_of_warps, at);
}

static_assert((sizeof(Ring) + 15) / 16 * 16 == 131072, "shared memory as planned");

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    cudaError_t error =
        cudaFuncSetAttribute(linear_gradient_f32_n2048_inner64_sums1_gate_f32_saved_f32_reverse_exclusiv_columns,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(linear_gradient_f32_n2048_inner64_sums1_gate_f32_saved_f32_reverse_exclusiv_columns,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
