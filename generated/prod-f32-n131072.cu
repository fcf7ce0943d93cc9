// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n131072
//          131072 float32 items, float32 out
// plan     persistent: threads 480, items 4, tiles 12, vectors 6, boundary 0, stages 4, ahead 2, blocks 1
//          rows of 131072: persistent blocks claim the tiles of all rows in order
// numbers  measured: persistent, bytes of an item of the output up to 4, any GPU
//          tuned: threads, vectors, stages, ahead, blocks; the others follow from the spec
// target   sm_90
// content  sha256 4395f551f8b41d7a of everything below this banner
// again    scanops generate prod-f32-n131072 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: persistent
typedef int Position;  // holds any position in a line, one tile past its end included
inline constexpr int kLength = 131072;  // items per line
inline constexpr bool kReverse = false;  // scan from the last item to the first
inline constexpr int kBlockThreads = 480;  // threads per block
inline constexpr int kBlockWarps = 15;  // warps per block
inline constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
inline constexpr int kItemsPerLoad = 4;  // items per vector load
inline constexpr int kThreadLoads = 6;  // vector loads per thread
inline constexpr int kRunItems = 4;  // consecutive items that a thread scans serially
inline constexpr int kThreadRuns = 6;  // runs per thread
inline constexpr int kItemsPerStore = 4;  // items per vector store
inline constexpr int kBankPeriod = 2;  // vector loads of a run after which shared memory banks repeat
inline constexpr int kWarpItems = 768;  // items per warp and tile
inline constexpr int kTileItems = 11520;  // items per tile
inline constexpr int kBoundaryItems = 0;  // items; vector loads of misaligned rows start at multiples of this
inline constexpr int kMaxLead = 0;  // most items by which a vector load starts before its row
inline constexpr bool kChecksEnd = true;  // vector loads may lie past the end of a row
inline constexpr bool kGuards = false;  // vector loads may reach past a row's ends
inline constexpr bool kInRuns = false;  // lanes exchange vectors, so that a thread's items are consecutive
inline constexpr int kStages = 4;  // tiles in the ring
inline constexpr int kAhead = 2;  // steps from a tile's scan, when its total is published, to its store
inline constexpr int kBlocksPerSm = 1;  // resident blocks per multiprocessor
inline constexpr int kLookBackGroups = 1;  // groups of 32 tiles whose totals a block reads in one step of its look-back
inline constexpr bool kLanesShare = false;  // lanes read what others of the warp copied
inline constexpr bool kZeroFills = false;  // items that do not exist are 0
inline constexpr bool kExclusive = false;  // a result is the prefix before its item
inline constexpr bool kComplete = false;  // a line has one result more than items
inline constexpr bool kAligned = true;  // dense operands start on a 16-byte boundary
inline constexpr bool kSerial = false;  // each result of a vector load is computed from the one before it
inline constexpr bool kCompensates = true;  // a total regains the rounding errors of its steps
inline constexpr bool kExtends = false;  // a thread's total is first computed with fewer instructions
inline constexpr bool kQuick = false;  // results as well are made with fewer instructions, where no line begins
inline constexpr bool kWithin = false;  // a result before an item has fields of the item, or of its segment alone
inline constexpr bool kLanesDown = false;  // the lane before a lane in scan order is the next one
inline constexpr bool kAppends = false;  // a single item is appended by an operation of its own
inline constexpr bool kSelects = false;  // lanes select each field of a state instead of branching
inline constexpr bool kResumes = false;  // segments have a carry-in
inline constexpr int kStatusWords = 1;  // status words of a tile
inline constexpr bool kLinked = false;  // other GPUs read status words
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
#include "headers/row_ring.cuh"
#include "headers/row_access.cuh"
#include "headers/row_copies.cuh"
#include "headers/row_scan.cuh"

// ---- multistage ring of tiles in shared memory
struct Ring {  // accesses of the tiles in flight
    Vector<Input> x[kStages][kThreadLoads * kBlockThreads];
};

// Copy the accesses of a tile to a stage of the ring.
__device__ __forceinline__ void copy(Ring& ring, unsigned stage, [[maybe_unused]] int warp, const RowPart& part,
                                     const Row& row, [[maybe_unused]] const Geometry& geometry) {
    copy_row(OperandLayout<kDense | kFirst, 0, 0>(), ring.x[stage] + threadIdx.x, part, row.from.x, geometry);
}

// The accesses of a tile, from a stage of the ring: a thread's own, or those of its consecutive items.
__device__ __forceinline__ Accesses take(const Ring& ring, unsigned stage, [[maybe_unused]] int warp,
                                         [[maybe_unused]] int lane) {
    Accesses a;
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        a.x[j] = ring.x[stage][threadIdx.x + j * kBlockThreads];
    }
    return a;
}

// Number of a tile among those of all rows. Where the length is an argument, the launcher refuses 2^31 tiles or more,
// so that the division by the tiles of a row takes 32-bit numbers.
typedef long long TileNumber;

#include "headers/row_look_back.cuh"

struct Tile {  // scanned, without the prefix of preceding tiles
    long long number;
    State warps;          // exclusive prefix of this warp in the tile
    State prefix[kThreadRuns];  // exclusive prefixes of this thread's consecutive items in their warp
};

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
prod_f32_n131072_persistent(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, Output* output, long long lines, unsigned long long* workspace) {
    wait_for_predecessors();
    const Operands<ConstPointerTo> operands = {input};
    const Outputs<PointerTo> outputs = {output};
    constexpr Geometry geometry = {};
    constexpr Position length = kLength;
    const TileStatus tile_status = {workspace, workspace + 2};
    dynamic_shared(Ring, ring);
    __shared__ State warp_aggregate[2][kBlockWarps];  // by the parity of the step
    __shared__ State group_aggregate[2][kLookBackGroups];  // by the parity of the step
    __shared__ unsigned long long ticket[2];  // by the parity of the step
    const int lane = threadIdx.x % kWarpThreads;
    const int warp = threadIdx.x / kWarpThreads;
    const int place = warp * kWarpItems + lane * kItemsPerLoad;  // of this thread's first item in a tile
    const int tiles_a_line = tiles_of(length);
    const long long tiles = lines * tiles_a_line;

    // This thread's part of a tile.
    const auto part_of = [&]([[maybe_unused]] long long line, int index) {
        const Position first = (Position)index * kTileItems + place;
        return RowPart{first, length, length, lane};
    };
    const auto load_tile = [&](unsigned stage, long long number) {
        if (number < tiles) {
            const long long line = (TileNumber)number / tiles_a_line;
            const RowPart part = part_of(line, (int)((TileNumber)number % tiles_a_line));
            copy(ring, stage, warp, part, row_of(operands, outputs, line, part, length, geometry), geometry);
        }
        copy_async_commit();
    };

    // ---- claim and load the first tiles
    constexpr int kLoaded = kStages - kAhead;  // tiles in the ring that are not scanned yet
    if (threadIdx.x == 0) ticket[0] = atomicAdd(tile_status.tickets, (unsigned long long)kLoaded);
    __syncthreads();
    const unsigned epoch = epoch_of(ticket[0]);
    long long loaded[kLoaded];  // their numbers
#pragma unroll
    for (int k = 0; k < kLoaded; ++k) {
        loaded[k] = (unsigned)ticket[0] + k;
        load_tile(k, loaded[k]);
    }
    unsigned long long taken = threadIdx.x == 0 ? take_ticket(tile_status) : 0;  // one step ahead of its use
    __syncthreads();

    Tile tile[kAhead + 1] = {};  // tile k is stored k steps later; the first steps read tiles before any is scanned
#pragma unroll
    for (int k = 0; k < kAhead; ++k) tile[k].number = -1;
    State base = identity();  // prefix of the groups of 32 tiles that precede the current tile's group in its row
    long long base_line = -1;
    int index = 0;  // index of the current tile within its row
    int group = 0;  // number of groups in base
    const bool looks_back = kLookBackGroups > 1 || warp == 0;
    const int own_group = kLookBackGroups > 1 ? warp : 0;  // of the kLookBackGroups that a block waits for in a step
    StatusWords words = {};  // the status this thread waits for, as read one step ahead

    for (int step = -kAhead; tile[0].number < tiles; ++step) {
        const unsigned parity = step & 1;
        if (threadIdx.x == 0) {
            ticket[parity] = taken;
            taken = take_ticket(tile_status);
        }

        // ---- scan the tile that is stored `kAhead` steps later, without the prefix of preceding tiles
        tile[kAhead].number = loaded[0];
        {
            const unsigned arrived = (unsigned)(step + kAhead) % kStages;
            const TileNumber number = (TileNumber)loaded[0];
            const RowPart part = part_of(number / tiles_a_line, (int)(number % tiles_a_line));
            copy_async_wait<kStages - 1 - kAhead>();
            if (kLanesShare) __syncwarp();  // lanes read items that other lanes copied
            Accesses a = take(ring, arrived, warp, lane);
            Items s[kThreadRuns];
#pragma unroll
            for (int j = 0; j < kThreadRuns; ++j)
                s[j] = lift_items(a, j);
            const State total = scan_across(tile[kAhead].prefix, s, identity(), part);
            if (lane == kWarpThreads - 1) warp_aggregate[parity][warp] = total;
        }

        // ---- look-back: the totals before the current tile, in groups of 32; each warp waits for one group
        const long long peers = tile[0].number - index;  // the first tile of the row
        if (looks_back) {
            const int peer = (group + own_group) * kWarpThreads + lane;
            State total = peer < index ? wait_for_status(tile_status, epoch, peers + peer, words) : identity();
            total = scan_lanes(total, lane);
            if (lane == kWarpThreads - 1) group_aggregate[parity][warp] = total;
        }
        __syncthreads();

        // ---- publish the total of the scanned tile
        const State totals = scan_lanes<kBlockWarps>(lane < kBlockWarps ? warp_aggregate[parity][lane] : identity(), lane);
        tile[kAhead].warps = warp_prefix(totals, warp);
        if (threadIdx.x == kBlockWarps - 1 && tile[kAhead].number < tiles)
            publish(tile_status, epoch, tile[kAhead].number, totals);

        // ---- read the totals before the next tile, one step ahead of their use
        const long long next_line = (TileNumber)tile[1].number / tiles_a_line;
        const int next_index = (int)((TileNumber)tile[1].number % tiles_a_line);
        const int next_group = kLookBackGroups > 1 && next_line == base_line ? index / kWarpThreads : 0;
        const int next_peer = (next_group + own_group) * kWarpThreads + lane;
        if (looks_back && next_peer < next_index && tile[1].number < tiles)
            words = load_status(tile_status, tile[1].number - next_index + next_peer);
        __syncwarp();  // otherwise ptxas reads them after the copies below, and the look-back waits for their data, too

        // ---- fold the preceding totals in a fixed order
        int w = 0;
        if constexpr (kLookBackGroups > 1) {
            for (; w < kBlockWarps && group < index / kWarpThreads; ++w, ++group) base = combine(base, group_aggregate[parity][w]);
            while (w == kBlockWarps) {  // more groups than warps
                wait_for_groups(group_aggregate[parity], tile_status, epoch, peers, group, index);
                for (w = 0; w < kBlockWarps && group < index / kWarpThreads; ++w, ++group)
                    base = combine(base, group_aggregate[parity][w]);
            }
        }
        const State prefix = combine(combine(base, group_aggregate[parity][w]), tile[0].warps);

        // ---- read the current tile from the ring, and issue the loads of its successor before any store
        const unsigned stage = (unsigned)(step + kStages) % kStages;
        const long long line = base_line;
        const RowPart part = part_of(line, index);
        Accesses a = take(ring, stage, warp, lane);
        Items s[kThreadRuns];
#pragma unroll
        for (int j = 0; j < kThreadRuns; ++j)
            s[j] = lift_items(a, j);
#pragma unroll
        for (int j = 0; j < kThreadRuns; ++j) scan_items(s[j]);
        if (kLanesShare) __syncwarp();  // all lanes have read the items overwritten below
#pragma unroll
        for (int k = 0; k + 1 < kLoaded; ++k) loaded[k] = loaded[k + 1];
        loaded[kLoaded - 1] = (unsigned)ticket[parity];
        load_tile(stage, loaded[kLoaded - 1]);

        // ---- store
        if (tile[0].number >= 0) {
            const Row row = row_of(operands, outputs, line, part, length, geometry);
#pragma unroll
            for (int n = 0; n < kThreadLoads; ++n) {
                const int j = place_of(n, kThreadLoads);
                if (part.reaches(j)) store(part, row, j, make_results(combine(prefix, tile[0].prefix[j]), s[j]));
            }
        }

        // ---- advance to the next tile
#pragma unroll
        for (int k = 0; k < kAhead; ++k) tile[k] = tile[k + 1];
        index = next_index;
        if (next_line != base_line) {
            base_line = next_line;
            base = identity();
            group = 0;
        }
    }
    // A block takes kStages + 1 surplus tickets.
    if (threadIdx.x == 0) advance_epoch(tile_status, taken, (unsigned)tiles + gridDim.x * (kStages + 1) - 1);
}

static_assert((sizeof(Ring) + 15) / 16 * 16 == 184320, "shared memory as planned");

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    cudaError_t error =
        cudaFuncSetAttribute(prod_f32_n131072_persistent,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(prod_f32_n131072_persistent,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
