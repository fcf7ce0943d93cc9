// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-i32-n100-mask_b8-reverse
//          100 int32 items, the bool mask selects, reverse, int64 out
// plan     staged: threads 32, items 2, tiles 1, rows 4, lanes 8, piece 14, unroll 7
//          4 rows of 100 items, contiguous in memory: copied coalesced, scanned in shared memory
// numbers  rule: staged
// target   sm_90
// content  sha256 fc11e930985426c5 of everything below this banner
// again    scanops generate sum-i32-n100-mask_b8-reverse --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef int Input;  // int32
typedef unsigned char Mask;  // bool
typedef long long Output;  // int64

typedef unsigned long long Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: staged
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr int kWarpThreads = 32;
constexpr unsigned kFullMask = 0xffffffffu;  // all threads of a warp
constexpr int kLength = 100;  // items per line
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kBlockThreads = 32;  // threads per block
constexpr int kBlockWarps = 1;  // warps per block
constexpr int kLanes = 8;  // neighbouring threads of a warp that scan a row
constexpr int kItemsPerLoad = 2;  // items per vector load
constexpr int kThreadLoads = 1;  // vector loads per run
constexpr int kRunItems = 2;  // consecutive items that a thread scans serially
constexpr int kItemsPerStore = 2;  // items per vector store
constexpr int kThreadRuns = 7;  // runs in a lane's piece of a row
constexpr int kUnroll = 7;  // runs that a lane processes per loop iteration
constexpr int kUnrolledRows = 1;  // rows that a lane processes per loop iteration
constexpr int kRoomItems = 400;  // items of a warp's rows in shared memory
constexpr int kSlackBytes = 0;  // bytes by which rows may start after a 16-byte boundary
constexpr bool kKeepsItems = true;  // a lane keeps its piece in registers while lanes exchange totals
constexpr bool kInitial = false;  // rows have a carry-in
constexpr int kRows = 4;  // rows per warp
constexpr int kLaneBits = 3;  // log2 of the lanes per row
constexpr int kPieceItems = 14;  // items per lane
constexpr bool kExclusive = false;  // a result is the prefix before its item
constexpr bool kComplete = false;  // a line has one result more than items
constexpr bool kSerial = false;  // each result of a vector load is computed from the one before it
constexpr bool kSelects = false;  // lanes select each field of a state instead of branching
constexpr bool kCopiesAsync = true;  // the target has cp.async
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

#ifdef __CUDACC__
// Asynchronous global-to-shared copy of 4, 8 or 16 bytes (cp.async), 16 with L1 bypass (cp.async.cg) if so asked.
// Fewer bytes pass through a register, and all of them where a target has no cp.async.
template <bool bypasses = false, class Item>
__device__ __forceinline__ void copy_async(Item* shared, const void* global) {
    [[maybe_unused]] const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    if constexpr (!kCopiesAsync || sizeof(Item) < 4)
        *shared = *static_cast<const Item*>(global);
    else if constexpr (bypasses && sizeof(Item) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(global), "n"(sizeof(Item)) : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    if constexpr (kCopiesAsync) asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    if constexpr (kCopiesAsync) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }
__device__ __forceinline__ State lift(Value x) { return x; }
__device__ __forceinline__ State combine(State older, State newer) { return older + newer; }

__device__ __forceinline__ State element(Input x, Mask m) {
    return m ? lift((unsigned long long)((long long)x)) : identity();
}

__device__ __forceinline__ Output output_of(State state) { return (long long)state; }

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// The items of a line, of which a complete scan has one less than results.
__device__ __forceinline__ constexpr Position items_in(Position length) { return length - kComplete; }

constexpr int kMostAccessBytes = 16;  // of a load or store of a thread

// ---- a vector load holds items in memory order, Items hold states in scan order
template <class Item, int count = kItemsPerLoad>
struct alignas(count * sizeof(Item)) Vector {
    static_assert((count & (count - 1)) == 0 && sizeof(Item) * count <= kMostAccessBytes, "an access is one instruction");
    Item item[count];
};

// Offset in memory to an item so many items further in scan order.
__device__ __forceinline__ constexpr Position along(Position items) { return kReverse ? -items : items; }

// Where a vector of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }

enum LayoutFlags {
    kDense = 1,        // lies as the output
    kContiguous = 2,   // items of a line are adjacent, lines begin anywhere
    kMisaligned = 4,   // lines begin off the output's vector loads
    kFlat = 8,         // a warp copies its rows as one range
    kRepeated = 16,    // another operand once more, read further on
    kFirst = 32,       // the first operand that is read
    kAlongLine = 64,   // transposed: contiguous are the items of a line
    kPerStep = 128,    // one item for all columns of a thread
};

template <int flags, int geometry, int shift, int access = 1>
struct OperandLayout {
    static constexpr bool kIsDense = flags & kDense;
    static constexpr bool kInRows = flags & kContiguous;
    static constexpr bool kIsShifted = flags & kMisaligned;
    static constexpr bool kIsFlat = flags & kFlat;
    static constexpr bool kIsRepeated = flags & kRepeated;
    static constexpr bool kIsFirst = flags & kFirst;
    static constexpr bool kIsAlong = flags & kAlongLine;
    static constexpr bool kIsPerStep = flags & kPerStep;
    static constexpr int kGeometry = geometry;  // its place in Geometry
    static constexpr int kShift = shift;        // items by which it is read further on in scan order
    static constexpr int kAccess = access;      // transposed: items that a lane copies at once
};

template <class Item>
using PointerTo = Item*;

template <class Item>
using ConstPointerTo = const Item*;

template <template <class> class Of>
struct Operands {
    Of<Input> x;
    Of<Mask> m;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kDense | kFirst, 0, 0>{}, packs.x...);
    use(OperandLayout<kDense, 1, 0>{}, packs.m...);
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

template <class Item>
using Loads = Vector<Item>[kThreadLoads];

struct Accesses : Operands<Loads> {  // how a thread addresses its items of a tile
};

typedef State ThreadState;  // of an item of a thread

struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
};

template <class Item>
using Stores = Vector<Item, kItemsPerStore>[kRunItems / kItemsPerStore];

typedef Outputs<Stores> Results;  // of Items

// States of the items of run j.
__device__ __forceinline__ Items lift_items(const Accesses& a, int j) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        const int access = (j * kRunItems + k) / kItemsPerLoad, place = place_of(k % kItemsPerLoad, kItemsPerLoad);
        s.item[k] = element(a.x[access].item[place], a.m[access].item[place]);
    }
    return s;
}

// ---- the items of a thread
// The total of a thread's consecutive items; leaves their inclusive scan in place.
__device__ __forceinline__ ThreadState scan_items(Items& s) {
    ThreadState total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) total = s.item[k] = combine(total, s.item[k]);
    return total;
}

template <class Item>
using One = Item;

typedef Outputs<One> Result;  // of one item

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

// Results of consecutive items, given the prefix before them.
__device__ __forceinline__ Results make_results(State prefix, const Items& s) {
    Results r;
    each_result(prefix, s, [&](int k, Result result) {
        const int at = place_of(k % kItemsPerStore, kItemsPerStore);
        for_each_output([&](auto& to, auto& from) { to[k / kItemsPerStore].item[at] = from; }, r, result);
    });
    return r;
}

template <class Exchange, class... States>
__device__ __forceinline__ State exchange_parts(Exchange exchange, const States&... s) {
    return exchange(s...);
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(const State& s, int distance) {
    return exchange_parts([&](auto part) { return __shfl_up_sync(kFullMask, part, distance, kLanes); }, s);
}

// The older state combined with the newer one, or `otherwise`. Where combine is expensive, all lanes compute it and
// select its result part by part, which costs less than a branch.
__device__ __forceinline__ State combine_if(bool condition, State older, State newer, State otherwise) {
    if constexpr (kSelects) {
        const auto select = [&](auto part, auto other) { return condition ? part : other; };
        return exchange_parts(select, combine(older, newer), otherwise);
    } else {
        return condition ? combine(older, newer) : otherwise;
    }
}

// Inclusive scan across the first `count` lanes.
template <int count = kLanes>
__device__ __forceinline__ State scan_lanes(State s, int lane) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const State older = shuffle_up(s, step);
        s = combine_if(lane >= step, older, s, s);
    }
    return s;
}

// ---- a warp's rows in shared memory, contiguous and in memory order
template <class Item>
struct alignas(16) StagedItems {
    Item item[kRoomItems + kSlackBytes / sizeof(Item)];
};

struct Staged {
    StagedItems<Input> input;
    StagedItems<Mask> mask;
    StagedItems<Output> output;

    __device__ __forceinline__ Operands<PointerTo> operands() {
        return {input.item, mask.item};
    }

    __device__ __forceinline__ Outputs<PointerTo> outputs() {
        return {output.item};
    }
};

struct Rows {  // one row or several in global or shared memory, by operand and output
    Operands<ConstPointerTo> from;
    Outputs<PointerTo> to;
};

__device__ __forceinline__ Rows advance(Rows rows, long long items, long long results) {
    for_each_operand([&](auto, auto& from) { from += items; }, rows.from);
    for_each_output([&](auto& to) { to += results; }, rows.to);
    return rows;
}

// Items between the preceding 16-byte boundary and the rows.
template <class Item>
__device__ __forceinline__ int phase(const Item* rows) {
    return kSlackBytes == 0 ? 0 : (int)((unsigned long long)rows % 16 / sizeof(Item));
}

// A warp copies items between global and shared memory, where they lie alike after a 16-byte boundary: by 16-byte
// accesses, and single items at both ends.
template <bool async, class Item>
__device__ __forceinline__ void copy_items(Item* to, const Item* from, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = kWarpThreads * width;
    const auto copy = [&](int i) {  // a 16-byte access
        auto* const wide = reinterpret_cast<Vector<unsigned, 4>*>(to + i);
        if constexpr (async)
            copy_async(wide, from + i);
        else
            *wide = *reinterpret_cast<const Vector<unsigned, 4>*>(from + i);
    };
    const int begin = phase(async ? from : to), end = begin + count;  // after the boundary
    to -= begin, from -= begin;
    int i = lane * width;
    if (kSlackBytes == 0 && end == kRoomItems) {  // all rows of the warp exist, and end on a boundary
#pragma unroll 8
        for (int step = 0; step < kRoomItems / stride; ++step, i += stride) copy(i);
        if (i < kRoomItems) copy(i);
        return;
    }
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (i += first; i < whole; i += stride) copy(i);
    if (lane >= begin && lane < first && lane < end) to[lane] = from[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) to[last] = from[last];
}

// Copy a warp's rows to shared memory, and return where they begin there. In reverse an item of a complete scan lies
// one place before its result.
__device__ __forceinline__ Rows read_rows(Staged& staged, const Rows& rows, int count, int lane) {
    const Operands<PointerTo> operands = staged.operands();
    const Outputs<PointerTo> outputs = staged.outputs();
    for_each_operand(
        [&](auto layout, auto* to, auto* from) {
            if constexpr (!layout.kIsRepeated) copy_items<true>(to + phase(from), from, count, lane);
        },
        operands, rows.from);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    Rows copied = rows;
    for_each_operand([&](auto, auto& from, auto* to) { from = to + phase(from) - (kComplete && kReverse); },
                     copied.from, operands);
    for_each_output([&](auto& to, auto* from) { to = from + phase(to); }, copied.to, outputs);
    return copied;
}

// Copy the results of a warp's rows to global memory.
__device__ __forceinline__ void write_rows(const Rows& rows, Staged& staged, int count, int lane) {
    const Outputs<PointerTo> outputs = staged.outputs();
    __syncwarp();
    for_each_output([&](auto* to, auto* from) { copy_items<false>(to, from + phase(to), count, lane); }, rows.to,
                    outputs);
}

template <class Item>
__device__ __forceinline__ Vector<Item> read_vector(const Item* from) {
    return *reinterpret_cast<const Vector<Item>*>(from);
}

template <class Item>
__device__ __forceinline__ Vector<Item> otherwise([[maybe_unused]] const Vector<Item> (&loads)[kThreadLoads]) {
    if constexpr (kComplete)
        return {};
    else
        return loads[0];
}

template <class Item, int count>
__device__ __forceinline__ void store_vector(Item* to, const Vector<Item, count>& items) {
    *reinterpret_cast<Vector<Item, count>*>(to) = items;
}

// The accesses of a run that begins with item i of a lane's piece; `rest`: items that remain of the piece.
__device__ __forceinline__ Accesses read_run(const Rows& at, int i, [[maybe_unused]] int rest, int start,
                                             Position length) {
    Accesses a;
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        // Accesses past the piece repeat the first one: no stored result depends on them, and their items are as great
        // as those of the row.
        const bool inside = kComplete ? start + i + j * kItemsPerLoad < length - 1 : j == 0 || j * kItemsPerLoad < rest;
        for_each_operand(
            [&](auto layout, auto& loads, auto* from) {
                if constexpr (!layout.kIsRepeated)
                    loads[j] = inside ? read_vector(from + along(i + j * kItemsPerLoad)) : otherwise(loads);
            },
            a, at.from);
    }
    return a;
}

__device__ __forceinline__ void write_run(const Rows& at, int i, int rest, const Results& r) {
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        if (j > 0 && j * kItemsPerLoad >= rest) continue;
        for_each_output([&](auto* to, auto& y) { store_vector(to + along(i + j * kItemsPerLoad), y[j]); }, at.to, r);
    }
}

// Scan a row, of which read(i, rest) gives the run of items that begins with item i of a lane's piece, and `rest` items
// of it remain; write(i, rest, prefix, run) stores its results. Lanes that share the row first reduce a piece each and
// scan the totals; then each lane scans its piece.
template <bool alone, class Read, class Write>
__device__ __forceinline__ void scan_row(const Read& read, const Write& write, State prefix, Position length, int part,
                                         int piece) {
    const int rest = length - part * piece;  // items to the end of the row
    const int items = rest < piece ? rest : piece;
    constexpr bool kept = kKeepsItems && !alone;  // the items stay in registers in between
    [[maybe_unused]] constexpr int steps = kept ? kThreadRuns : kUnroll;
    const int end = kept ? kThreadRuns * kRunItems : items;
    Items s[kept ? kThreadRuns : 1];
    if constexpr (!alone) {
        State total = identity();
#pragma unroll steps
        for (int i = 0; i < end; i += kRunItems) {
            if (i >= items) continue;
            Items& scanned = s[kept ? i / kRunItems : 0];
            scanned = read(i, items - i);
            total = kThreadRuns == 1 ? scan_items(scanned) : combine(total, scan_items(scanned));
        }
        const State older = shuffle_up(scan_lanes(total, part), 1);
        if (part > 0) prefix = kInitial ? combine(prefix, older) : older;
    }
#pragma unroll steps
    for (int i = 0; i < end; i += kRunItems) {
        if (i >= items) continue;
        Items& scanned = s[kept ? i / kRunItems : 0];
        if constexpr (!kept) scanned = read(i, items - i);
        const State total = kept && !kSerial ? scanned.item[kRunItems - 1] : scan_items(scanned);
        write(i, items - i, prefix, scanned);
        prefix = combine(prefix, total);
    }
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
sum_i32_n100_mask_b8_reverse_staged(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, const Mask* mask, Output* output, long long lines) {
    const Operands<ConstPointerTo> operands = {input, mask};
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
        cudaLaunchKernel(sum_i32_n100_mask_b8_reverse_staged,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
