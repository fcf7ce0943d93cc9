// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-f32-n4096-gate_f32
//          4096 float32 items, a float32 gate, float32 out
// plan     block: threads 160, items 4, tiles 1, vectors 7, boundary 0, one_block_per_sm False
//          a row of 4096 fits in the registers of one block: one tile, no loop
// numbers  measured: block recurrence, vector loads of a row up to 2304, any GPU
//          tuned: vectors; the others follow from the spec
// target   sm_90
// content  sha256 7dcf5d4dc9275d94 of everything below this banner
// again    scanops generate linear-f32-n4096-gate_f32 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Gate;  // float32
typedef float Output;  // float32

typedef float Value;  // accumulator type

struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
};

// ---- the plan: block
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr int kWarpThreads = 32;
constexpr unsigned kFullMask = 0xffffffffu;  // all threads of a warp
constexpr int kLength = 4096;  // items per line
constexpr bool kReverse = false;  // scan from the last item to the first
constexpr int kBlockThreads = 160;  // threads per block
constexpr int kBlockWarps = 5;  // warps per block
constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
constexpr int kItemsPerLoad = 4;  // items per vector load
constexpr int kThreadLoads = 7;  // vector loads per thread
constexpr int kRunItems = 28;  // consecutive items that a thread scans serially
constexpr int kThreadRuns = 1;  // runs per thread
constexpr int kItemsPerStore = 4;  // items per vector store
constexpr int kBankPeriod = 1;  // vector loads of a run after which shared memory banks repeat
constexpr int kStripeItems = 128;  // items that the lanes of a row load with one vector load each
constexpr int kStripes = 7;  // vector loads per lane of a warp
constexpr int kBoundaryItems = 0;  // items; vector loads of misaligned rows start at multiples of this
constexpr bool kChecksEnd = true;  // vector loads may lie past the end of a row
constexpr bool kGuards = false;  // vector loads may reach past a row's ends
constexpr int kExchangedBytes = 16;  // bytes of the widest vector that lanes exchange
constexpr bool kZeroFills = true;  // items that do not exist are 0
constexpr bool kExclusive = false;  // a result is the prefix before its item
constexpr bool kComplete = false;  // a line has one result more than items
constexpr bool kChoosesLanes = false;  // the length chooses the lanes or stripes of a row
constexpr bool kAppends = true;  // a single item is appended by an operation of its own
constexpr bool kSelects = true;  // lanes select each field of a state instead of branching
static_assert(kBlockThreads % kWarpThreads == 0, "blocks of whole warps");

// ---- operator linear: y[i] = g[i] * y[i-1] + x[i]
__device__ __forceinline__ bool is_zero(Value x) { return !(x != 0); }
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

__device__ __forceinline__ State element(Input x, Gate g) { return lift(x, g); }
__device__ __forceinline__ Output output_of(State state) { return state.value; }

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// The items of a line, of which a complete scan has one less than results.
__device__ __forceinline__ constexpr Position items_in(Position length) { return length - kComplete; }

// What is not read is 0 in registers. In shared memory it stays, unless all items of a thread decide by which
// instructions it computes, and so the bits of its results.
template <class Slot>
__device__ __forceinline__ void leave_out([[maybe_unused]] Slot& slot) {
    if constexpr (kZeroFills) slot = {};
}

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
    Of<Gate> g;
};

// Call use(layout, members of packs...) for each operand.
template <class Use, class... Packs>
__device__ __forceinline__ void for_each_operand(Use use, Packs&... packs) {
    use(OperandLayout<kDense | kFirst, 0, 0>{}, packs.x...);
    use(OperandLayout<kDense, 2, 0>{}, packs.g...);
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
        s.item[k] = element(a.x[access].item[place], a.g[access].item[place]);
    }
    return s;
}

__device__ __forceinline__ State empty_state() { return identity(); }

// ---- the items of a thread
// The total of a thread's consecutive items.
__device__ __forceinline__ ThreadState scan_items(const Items& s) {
    ThreadState total = kAppends ? append(empty_state(), s.item[0]) : s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) total = append(total, s.item[k]);
    return total;
}

template <class Item>
using One = Item;

typedef Outputs<One> Result;  // of one item

__device__ __forceinline__ Result result_of(State state) {
    return {output_of(state)};
}

// Call use(k, result) for each item, in order, given the prefix before the items. Each follows from the one before.
template <class Use>
__device__ __forceinline__ void each_result(const ThreadState& prefix, const Items& s, Use use) {
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = append(last, s.item[k]);
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
    return {exchange(s.gate...), exchange(s.value...)};
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(const State& s, int distance) {
    return exchange_parts([&](auto part) { return __shfl_up_sync(kFullMask, part, distance, kLanes); }, s);
}

__device__ __forceinline__ State shuffle(const State& s, int source) {
    return exchange_parts([&](auto part) { return __shfl_sync(kFullMask, part, source, kLanes); }, s);
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warp_prefix(State totals, int warp) {
    const bool first = warp == 0;
    const State older = shuffle(totals, first ? 0 : warp - 1);
    return first ? identity() : older;
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

struct RowPart {                            // a thread's slice of a row
    Position first;                         // scan position of its first item
    Position length;                        // of the row
    Position end;                           // of the items that it accesses
    int lane;                               // in the row
    int lanes = kLanes, last = kLanes - 1;  // lanes of the row, and the last of them in the warp
    int step = kLanes * kItemsPerLoad;      // items from an access to the next
    int accesses = kThreadLoads;            // that have items
    bool live = true;                       // the row is not past the last one

    __device__ __forceinline__ Position at(int j) const { return first + j * step; }  // of access j

    __device__ __forceinline__ bool reaches([[maybe_unused]] int j) const {
        return live && (!kChecksEnd || at(j) < end);
    }

    // Scan position of the first item of run j.
    __device__ __forceinline__ Position begin(int j) const {
        return kThreadRuns == 1 ? first + lane * (kRunItems - kItemsPerLoad) : at(j);
    }

    // Items from there to the end of the row.
    __device__ __forceinline__ Position rest(int j) const { return length - begin(j); }
};

// The first access of a contiguous tensor whose rows have this length.
template <class Item>
__device__ __forceinline__ Item* dense(Item* items, long long line, const RowPart& part, Position length) {
    return items + line * length + memory_index(part.first, kItemsPerLoad, length);
}

// ---- misaligned rows: vector accesses are aligned, those at both ends of a row are predicated
__device__ __forceinline__ bool is_inside(Position position, Position end) {
    return (unsigned long long)position < (unsigned long long)end;
}

__device__ __forceinline__ bool is_whole(Position position, int items, Position end) {
    return position >= 0 && position <= end - items;
}

struct Geometry {};  // all operands lie as the output

template <class Layout, class Item>
__device__ __forceinline__ const Item* first_access(Layout, const Item* from, long long line, const RowPart& part,
                                                    Position length, const Geometry&) {
    return dense(from, line, part, length);
}

// Items from one of a line to the next.
template <class Layout>
__device__ __forceinline__ long long step_of(Layout, const Geometry&) {
    return 1;
}

struct Row {  // addresses of a thread's first access of each operand and output
    Operands<ConstPointerTo> from;
    Outputs<PointerTo> to;
};

__device__ __forceinline__ Row row_of(const Operands<ConstPointerTo>& operands, const Outputs<PointerTo>& outputs,
                                      long long line, const RowPart& part, Position length, const Geometry& geometry) {
    Row row = {operands, outputs};
    for_each_operand(
        [&](auto layout, auto& from) { from = first_access(layout, from, line, part, items_in(length), geometry); },
        row.from);
    for_each_output([&](auto& to) { to = dense(to, line, part, length); }, row.to);
    return row;
}

// ---- the lanes of a warp exchange vectors, so that the items of a lane are consecutive
// Place of a vector in shared memory: free of bank conflicts in order, and where each lane has `run` consecutive ones.
template <int run>
__device__ __forceinline__ int access_place(int number) {
    return number ^ (number >> 3 & (run - 1));
}

struct alignas(kExchangedBytes) Exchanged {  // a vector of any operand or output
    unsigned char bytes[kExchangedBytes];
};

// Neighbouring lanes load neighbouring vectors, and scan runs of consecutive ones: so a warp scans across its lanes
// once, not once for each vector. `slots`: places in shared memory for the vectors of the warp.
template <class Held, class Slot>
__device__ __forceinline__ void exchange_to_runs(Held (&held)[kThreadLoads], Slot* slots, int lane) {
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane + kWarpThreads * j)]) = held[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        held[j] = reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane * kThreadLoads + j)]);
}

template <class Held, class Slot>
__device__ __forceinline__ void exchange_back(Held (&held)[kThreadLoads], Slot* slots, int lane) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane * kThreadLoads + j)]) = held[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        held[j] = reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane + kWarpThreads * j)]);
}

__device__ __forceinline__ void exchange_operands(Accesses& a, Exchanged* slots, int lane) {
    for_each_operand(
        [&](auto layout, auto& held) {
            if constexpr (!layout.kIsFirst) __syncwarp();  // all lanes have read the vectors of the operand before
            exchange_to_runs(held, slots, lane);
        },
        a);
}

__device__ __forceinline__ void exchange_results(Results& r, Exchanged* slots, int lane) {
    for_each_output([&](auto& held) { exchange_back(held, slots, lane); }, r);
}

// ---- loads and stores
template <class To>
__device__ __forceinline__ void fetch(To* to, const void* from) {
    *to = *static_cast<const To*>(from);
}

// Where a thread keeps access j, and access j of an operand whose lanes share accesses.
__device__ __forceinline__ int slot_of(int j, int) { return j; }

// Read an access whose items are `step` apart, those in the row: as a whole, or one by one.
template <bool dense, bool guarded, class Item>
__device__ __forceinline__ void read_access(Vector<Item>* to, const Item* from, long long step, Position position,
                                            Position end) {
    if (dense && (!guarded || is_whole(position, kItemsPerLoad, end))) {
        fetch(to, from);
    } else {
#pragma unroll
        for (int k = 0; k < kItemsPerLoad; ++k)
            if (!guarded || is_inside(position + place_of(k, kItemsPerLoad), end))
                fetch(&to->item[k], from + k * step);
            else
                leave_out(to->item[k]);
    }
}

// Read accesses that lie as those of the output, or whose items are `step` apart, by rising address. `from` lies
// `shift` items further on than the output.
template <bool dense, int shift = 0, class Item>
__device__ __forceinline__ void read_row(Vector<Item>* to, const RowPart& part, const Item* from, long long step) {
    const Position end = kComplete ? min(part.end, part.length - 1) : part.end;
#pragma unroll
    for (int n = 0; n < kThreadLoads; ++n) {
        const int j = place_of(n, kThreadLoads);
        const Item* const access = from + along(j * part.step) * step;
        Vector<Item>& slot = to[slot_of(j, part.lane)];
        if (part.reaches(j))
            read_access<dense, (kGuards || shift > 0)>(&slot, access, step, part.at(j) + shift, end);
        else
            leave_out(slot);
    }
}

// All accesses of a thread.
__device__ __forceinline__ Accesses load(const RowPart& part, const Row& row, const Geometry& geometry) {
    Accesses a;
    for_each_operand(
        [&](auto layout, auto& to, auto* from) {
            if constexpr (!layout.kIsRepeated)
                read_row<(layout.kIsDense || layout.kInRows)>(to, part, from, step_of(layout, geometry));
        },
        a, row.from);
    return a;
}

// Store an access: as a whole, or those of its items that are in the row.
template <class Item>
__device__ __forceinline__ void store_access(Item* to, const Vector<Item, kItemsPerStore>& y, Position position,
                                             Position end) {
    if (kBoundaryItems == 0 || is_whole(position, kItemsPerStore, end)) {
        *reinterpret_cast<Vector<Item, kItemsPerStore>*>(to) = y;
    } else {
#pragma unroll
        for (int k = 0; k < kItemsPerStore; ++k)
            if (is_inside(position + place_of(k, kItemsPerStore), end)) to[k] = y.item[k];
    }
}

// Store the results of access j.
__device__ __forceinline__ void store(const RowPart& part, const Row& row, int j, const Results& r) {
    const int access = kThreadRuns == 1 ? j : 0;
    const Position step = along(j * part.step);
    for_each_output([&](auto* to, auto& y) { store_access(to + step, y[access], part.at(j), part.end); }, row.to, r);
}

// ---- the scan of a thread's items, then across the lanes of their row or warp
// Exclusive prefixes of a thread's runs in their row or warp, which `before` precedes; returns the total.
__device__ __forceinline__ State scan_across(State (&p)[kThreadRuns], Items (&s)[kThreadRuns], State before,
                                             const RowPart& part) {
    before = scan_lanes(scan_items(s[0]), part.lane);  // inclusive of this thread's items
    const State older = shuffle_up(before, 1);
    p[0] = part.lane > 0 ? older : identity();
    return before;
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
linear_f32_n4096_gate_f32_block(  // no __restrict__: an operand may be an output, such as x with out=x
    const Input* input, const Gate* gate, Output* output) {
    const Operands<ConstPointerTo> operands = {input, gate};
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
        cudaLaunchKernel(linear_f32_n4096_gate_f32_block,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
