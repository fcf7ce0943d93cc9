// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n600-acc_compensated
//          600 float32 items, accumulated with compensation, float32 out
// plan     staged: threads 32, items 4, tiles 1, rows 1, lanes 32, piece 20, unroll 5
//          1 row of 600 items, contiguous in memory: copied coalesced, scanned in shared memory
// numbers  rule: staged
// target   sm_90
// content  sha256 5b9925e2513a29c2 of everything below this banner
// again    scanops generate sum-f32-n600-acc_compensated --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value value;
    Value lost;
};

// ---- the plan: staged
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 600;  // items per line
inline constexpr bool kReverse = false;  // scan from the last item to the first
inline constexpr int kBlockThreads = 32;  // threads per block
inline constexpr int kBlockWarps = 1;  // warps per block
inline constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
inline constexpr int kItemsPerLoad = 4;  // items per vector load
inline constexpr int kThreadLoads = 1;  // vector loads per run
inline constexpr int kRunItems = 4;  // consecutive items that a thread scans serially
inline constexpr int kItemsPerStore = 4;  // items per vector store
inline constexpr int kThreadRuns = 5;  // runs in a lane's piece of a row
inline constexpr int kUnroll = 5;  // runs that a lane processes per loop iteration
inline constexpr int kUnrolledRows = 1;  // rows that a lane processes per loop iteration
inline constexpr int kRoomItems = 600;  // items of a warp's rows in shared memory
inline constexpr int kSlackBytes = 0;  // bytes by which rows may start after a 16-byte boundary
inline constexpr bool kKeepsItems = false;  // a lane keeps its piece in registers while lanes exchange totals
inline constexpr bool kInitial = false;  // rows have a carry-in
inline constexpr int kRows = 1;  // rows per warp
inline constexpr int kLaneBits = 5;  // log2 of the lanes per row
inline constexpr int kPieceItems = 20;  // items per lane
inline constexpr bool kZeroFills = true;  // items that do not exist are 0
inline constexpr bool kExclusive = false;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kSerial = true;  // each result of a vector load is computed from the one before it
inline constexpr bool kCompensates = false;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kLanesDown = false;  // the lane before a lane in scan order is the next one
inline constexpr bool kAppends = false;  // a single item is appended by an operation of its own
inline constexpr bool kSelects = false;  // lanes select each field of a state instead of branching
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr bool kCopiesAsync = true;  // the target has cp.async
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#include "headers/early_begin.cuh"
#include "headers/functions.cuh"

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return {0, 0}; }

__device__ __forceinline__ State lift(Value x) { return {x, 0}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.value = older.value + newer.value;
    s.lost = older.lost + newer.lost + lost_by_sum(older.value, newer.value);
    return s;
}

__device__ __forceinline__ State append(State older, State newer) { return combine(older, newer); }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output output_of(State state) {
    return is_nan(state.lost) ? state.value : state.value + state.lost;
}

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
    return {exchange(s.value...), exchange(s.lost...)};
}

#include "headers/thread_scan.cuh"
#include "headers/thread_results.cuh"
#include "headers/row_results.cuh"
#include "headers/lanes.cuh"

// ---- a warp's rows in shared memory, contiguous and in memory order
template <class Item>
struct alignas(16) StagedItems {
    Item item[kRoomItems + kSlackBytes / sizeof(Item)];
};

struct Staged {
    union {  // results overwrite the items that they come from
        StagedItems<Input> input;
        StagedItems<Output> output;
    };

    __device__ __forceinline__ Operands<PointerTo> operands() {
        return {input.item};
    }

    __device__ __forceinline__ Outputs<PointerTo> outputs() {
        return {output.item};
    }
};

#include "headers/staged_rows.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads)
sum_f32_n600_acc_compensated_staged(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Position length = kLength;
    constexpr int rows = kRows;
    constexpr int lane_bits = kLaneBits;
    constexpr int piece = kPieceItems;
    // ---- a warp has `rows` rows, independent of other warps
    __shared__ Staged of_warp[kBlockWarps];
    const int lane = threadIdx.x % kWarpThreads;
    const int warp = kBlockWarps > 1 ? threadIdx.x / kWarpThreads : 0;
    const long long line = ((long long)blockIdx.x * kBlockWarps + warp) * rows;
    if (kBlockWarps > 1 && line >= lines) return;

    // ---- copy the rows to shared memory
    const int count = (int)(lines - line < rows ? lines - line : rows);  // rows that exist
    const Rows global = advance({operands, outputs}, line * items_in(length), line * length);
    const Rows copied = read_rows(of_warp[warp], global, count * items_in(length), lane);

    // ---- scan some rows at once, by 1 << lane_bits lanes each; items past the last row are scanned, not stored
    const int at_once = kWarpThreads >> lane_bits, turns = rows >> (5 - lane_bits);
    const int own_row = lane >> lane_bits, part = lane & ((1 << lane_bits) - 1), start = part * piece;
#pragma unroll kUnrolledRows
    for (int turn = 0; turn < turns; ++turn) {
        const int row = own_row + turn * at_once;
        const Position first = memory_index(start, kItemsPerLoad, length);  // of the lane's piece
        const Rows at = advance(copied, row * items_in(length) + first, row * length + first);
        const State begin = identity();
        const auto read = [&](int i, int rest) {  // `i` counts the items of a lane's piece in scan order
            Accesses a = read_run(at, i, rest, start, length);
            return lift_items(a, 0);
        };
        const auto write = [&](int i, int rest, State prefix, const Items& s) {
            write_run(at, i, rest, make_results(prefix, s));
        };
        if (lane_bits == 0)
            scan_row<true>(read, write, begin, length, 0, length);
        else
            scan_row<false>(read, write, begin, length, part, piece);
    }

    // ---- copy the results out
    write_rows(global, of_warp[warp], count * length, lane);
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    const cudaError_t error =
        cudaLaunchKernel(sum_f32_n600_acc_compensated_staged,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
