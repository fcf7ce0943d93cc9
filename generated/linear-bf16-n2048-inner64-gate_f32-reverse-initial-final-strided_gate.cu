// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate
//          2048 bfloat16 items of stride 64, a float32 gate, reverse, initial, final, strided_gate, float32 out
// plan     columns: threads 512, items 16, tiles 8, columns 32, vector 1, strided_columns False, stages 0, blocks 1
//          the scanned dimension has stride 64: 32 neighbouring columns per block
// numbers  measured: columns strided, rows up to 8192, any GPU
//          tuned: threads, items, columns, vector, strided_columns, stages, blocks; the others follow from the spec
// target   sm_90
// content  sha256 b25dfac6a4278fb2 of everything below this banner
// again    scanops generate linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef unsigned short Input;  // bfloat16
typedef float Gate;  // float32
typedef float Output;  // float32
typedef float Carry;  // float32: carry-in and carry-out of a line
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
};

// ---- the plan: columns
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 2048;  // items per line
inline constexpr bool kReverse = true;  // scan from the last item to the first
inline constexpr int kBlockThreads = 512;  // threads per block
inline constexpr int kBlockWarps = 16;  // warps per block
inline constexpr int kBlocksPerSm = 1;  // least resident blocks per multiprocessor
inline constexpr int kRunItems = 16;  // rows per thread and tile
inline constexpr int kThreadColumns = 1;  // columns per thread
inline constexpr int kLanes = 32;  // threads side by side across a column tile
inline constexpr int kColumnTiles = 2;  // column tiles across the columns
inline constexpr bool kPartialColumns = false;  // the last tile has fewer columns
inline constexpr bool kStridedColumns = false;  // a thread's columns are kLanes apart, and accessed one by one
inline constexpr bool kRealigns = false;  // rows start between the boundaries of vector loads
inline constexpr bool kExchangesRows = false;  // lanes exchange rows in shared memory
inline constexpr bool kLoops = true;  // a column has several tiles
inline constexpr bool kZeroFills = false;  // items that do not exist are 0
inline constexpr bool kExclusive = false;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kUneven = false;  // the last tile of a line is partial
inline constexpr bool kSeveralOperands = true;  // each item is made of several operands
inline constexpr bool kSerial = true;  // each result is computed from the one before it
inline constexpr bool kCompensates = false;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kAppends = true;  // a single item is appended by an operation of its own
inline constexpr int kInner = 64;  // columns side by side: the stride of the scanned dimension
inline constexpr int kStridedOperands = 4;  // operands that may have strides of their own
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
inline constexpr bool kConvertsBfloat = true;  // the target converts to bfloat16
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/half_types.cuh"
#include "headers/early_begin.cuh"
#include "headers/functions.cuh"

// ---- operator linear: y[i] = g[i] * y[i-1] + x[i]
__device__ __forceinline__ State identity() { return {1, 0}; }

__device__ __forceinline__ State lift(Value x, Value g) { return {g, x}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = is_zero(older.value) ? newer.value : newer.gate * older.value + newer.value;
    return s;
}

__device__ __forceinline__ State append(State older, State newer) {
    State s;
    s.gate = older.gate * newer.gate;
    s.value = newer.gate * older.value + newer.value;
    return s;
}

__device__ __forceinline__ State element(Input x, Gate g) { return lift(bfloat_to_float(x), g); }

__device__ __forceinline__ Output output_of(State state) { return state.value; }

// Carry-in: the state of a result that is carried in.
__device__ __forceinline__ State begin_line(const Carry* carry_in) {
    const Value x = *carry_in;
    return {1, x};
}

// Carry-out: the result of the whole line.
__device__ __forceinline__ Carry end_line(State state) { return state.value; }

#include "headers/memory.cuh"
#include "headers/geometry.cuh"
#include "headers/operand_layout.cuh"

template <template <class> class Of>
struct Operands {
    Of<Input> x;
    Of<Gate> g;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kDense | kFirst, 0, 0>{}, packs.x...);
    use(OperandLayout<0, 2, 0>{}, packs.g...);
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
#include "headers/columns_strided.cuh"
#include "headers/column_sources.cuh"
#include "headers/column_loads.cuh"
#include "headers/column_carry_in.cuh"

// ---- the items of a thread
// The states of a tile's rows.
__device__ __forceinline__ Items lift_items(const TileRows& rows) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k)
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            s.item[k].column[c] = element(rows.x.row[k].column[c], rows.g.row[k].column[c]);
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
#include "headers/column_carry_out.cuh"

template <class Exchange, class... States>
__device__ __forceinline__ State exchange_parts(Exchange exchange, const States&... s) {
    return {exchange(s.gate...), exchange(s.value...)};
}

#include "headers/column_lanes.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
linear_bf16_n2048_inner64_gate_f32_reverse_initial_final_strided_gate_columns(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, const Gate* gate, Output* output, const __grid_constant__ Geometry geometry, long long
    lines, const Carry* carry_in, long long carry_in_step, Carry* carry_out) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input, gate};
    const Outputs<PointerTo> outputs = {output};
    constexpr Position length = kLength;
    // by the parity of a tile: its prefix, then the totals of its warps
    __shared__ States warp_aggregates[kLoops ? 2 : 1][kBlockWarps][kLanes];

    // ---- a block scans the columns of one column tile
    const Place at = thread_position(blockIdx.x, 0, length);
    Sources from = sources_of(operands, at, geometry, length, lines, length);
    Outputs<PointerTo> to = outputs;
    for_each_output([&](auto& y) { y += at.item; }, to);
    [[maybe_unused]] const int lane = at.lane, warp = at.warp, place = at.in_tile;
    const int tiles_a_line = kLoops ? (int)((length + kTileItems - 1) / kTileItems) : 1;
    // the prefix of the first tile
    States carry = begin_lines(carry_in + at.line * carry_in_step, at.step * carry_in_step, at.there);
    if (kBlockWarps > 1 && kLoops && threadIdx.x < kLanes) warp_aggregates[0][0][place] = carry;

    // ---- load the first tile
    TileRows rows = load(from, items_in(at.live), at.there);

    for (int tile = 0; tile < tiles_a_line; ++tile) {
        const Position begin = (Position)tile * kTileItems;  // scan position of the tile's first row
        Items s = lift_items(rows);

        // ---- prefetch the next tile: its loads are in flight while this one is scanned
        if (tile < tiles_a_line - 1) {
            advance(from);
            rows = load(from, items_in(at.live) - begin - kTileItems, at.there);
        }

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
        each_result(prefix, s, [&](int k, const Results& results) {
            store_row(to, k, results, at.live - begin, at.there);
        });
        end_items(carry_out + at.line, at.step, length - at.scanned - begin, at.there, prefix, s);
        advance(to);
        if constexpr (kExchangesRows) __syncwarp();  // all lanes have read what the next copies overwrite
    }
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(linear_bf16_n2048_inner64_gate_f32_reverse_initial_final_strided_gate_columns,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
