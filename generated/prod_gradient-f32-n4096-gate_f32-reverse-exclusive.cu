// scanops: y[i] = m[i] ? x[i] + s[i-1] : 0, times v[i], s[i] = (m[i] ? g[i] : 1) * (x[i] + s[i-1])
//
// spec     prod_gradient-f32-n4096-gate_f32-reverse-exclusive
//          4096 float32 items, a float32 gate, reverse, exclusive, float32 out
// plan     block: threads 352, items 4, tiles 1, vectors 3, boundary 0, one_block_per_sm False
//          a row of 4096 fits in the registers of one block: one tile, no loop
// numbers  rule: block
// target   sm_90
// content  sha256 b983b8f98a8401fc of everything below this banner
// again    scanops generate prod_gradient-f32-n4096-gate_f32-reverse-exclusive --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Gate;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value Former;  // the forward scan's result before an item
struct State {  // scan state of a contiguous range of items
    Value gate;
    Value value;
    Value item;
    Value before;
    int keep;
};

// ---- the plan: block
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 4096;  // items per line
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 352;  // threads per block
constexpr int kWarps = 11;  // warps per block
constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 4;  // items per vector load
constexpr int kVectors = 3;  // vector loads per thread
constexpr int kRun = 4;  // consecutive items that a thread scans serially
constexpr int kRuns = 3;  // runs per thread
constexpr int kOutItems = 4;  // items per vector store
constexpr int stripe = 128;  // items that the lanes of a row load with one vector load each
constexpr int stripes = 3;  // vector loads per lane of a warp
constexpr int kBoundary = 0;  // items; vector loads of misaligned rows start at multiples of this
constexpr bool kClears = true;  // items that do not exist are 0
static_assert(kThreads % 32 == 0, "blocks of whole warps");

// ---- operator prod_gradient: y[i] = m[i] ? x[i] + s[i-1] : 0, times v[i], s[i] = (m[i] ? g[i] : 1) * (x[i] + s[i-1])
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

// combine where `newer` is the state of one item.
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
__device__ __forceinline__ State within(State before, State own) {
    before.item = own.item;
    before.before = own.before;
    before.keep = own.keep;
    return before;
}

__device__ __forceinline__ State element(Input x, Gate g, Former f) {
    return lift(x, g, f, true);
}

__device__ __forceinline__ Output output_of(State state) {
    return state.keep ? (state.item + state.value) * state.before : 0;
}

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// What is not read is 0 in registers. In shared memory it stays, unless all items of a thread decide by which
// instructions it computes, and so the bits of its results.
template <class Slot>
__device__ __forceinline__ void leave_out([[maybe_unused]] Slot& slot) {
    if constexpr (kClears) slot = {};
}

// ---- accesses hold items in memory order, Items hold states in scan order
template <class Item, int count = kItems>
struct alignas(count * sizeof(Item)) Vector {  // one access
    static_assert((count & (count - 1)) == 0 && sizeof(Item) * count <= 16, "an access is one instruction");
    Item item[count];
};
struct FormerVector {  // the forward scan's prefixes before the items of an access
    Former item[kItems];
};
struct Accesses {  // how a thread addresses its items of a tile
    Vector<Input> x[kVectors];
    Vector<Gate> g[kVectors];
    FormerVector f[kVectors];
};
struct Items {
    State item[kRun];
};
struct Results {  // of Items
    Vector<Output, kOutItems> y[kRun / kOutItems];
};

// Where an access of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }

// Offset in memory to an item so many items further in scan order.
__device__ __forceinline__ constexpr Position along(Position items) { return kReverse ? -items : items; }

// States of the items of run j.
__device__ __forceinline__ Items lift_items(const Accesses& a, int j) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        const int access = (j * kRun + k) / kItems, at = place_of(k % kItems, kItems);
        s.item[k] = element(a.x[access].item[at], a.g[access].item[at], a.f[access].item[at]);
    }
    return s;
}

// ---- the items of a thread
// The total of consecutive items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = append(identity(), s.item[0]);
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        total = append(total, s.item[k]);
    }
    return total;
}

struct Result {  // of one item
    Output y;
};

__device__ __forceinline__ Result result_of(State state) {
    return {output_of(state)};
}

constexpr bool kExclusive = true;  // a result is the prefix before its item

// Call use(k, result) for each item, in order, given the prefix before the items.
template <class Use>
__device__ __forceinline__ void each_result(const State& prefix, const Items& s, Use use) {
    State last = prefix;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        if constexpr (kExclusive) use(k, result_of(within(last, s.item[k])));
        last = append(last, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

// Results of consecutive items, given the prefix before them.
__device__ __forceinline__ Results make_results(State prefix, const Items& s) {
    Results r;
    each_result(prefix, s, [&](int k, Result result) {
        const int at = place_of(k % kOutItems, kOutItems);
        r.y[k / kOutItems].item[at] = result.y;
    });
    return r;
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.gate, distance, kLanes),
            __shfl_up_sync(0xffffffffu, s.value, distance, kLanes),
            {},
            {},
            {}};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.gate, source, kLanes),
            __shfl_sync(0xffffffffu, s.value, source, kLanes),
            {},
            {},
            {}};
}

__device__ __forceinline__ State pick(bool first, State a, State b) {
    return {first ? a.gate : b.gate,
            first ? a.value : b.value,
            {},
            {},
            {}};
}

// Inclusive scan across the first `count` lanes.
template <int count = kLanes>
__device__ __forceinline__ State scan_lanes(State s, int lane) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const State older = shuffle_up(s, step);
        s = pick(lane >= step, combine(older, s), s);
    }
    return s;
}

// The exclusive prefix of this lane's access, given that of the row's accesses; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane, int last = kLanes - 1) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = pick(lane > 0, combine(before, older), before);
    before = combine(before, shuffle(inclusive, last));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const bool first = warp == 0;
    const State older = shuffle(totals, first ? 0 : warp - 1);
    return first ? identity() : older;
}
struct Part {  // what a thread takes of a row
    Position first;   // scan position of its first item
    Position length;  // of the row
    Position end;     // of the items that it accesses
    int lane;         // in the row
    int lanes = kLanes, last = kLanes - 1;  // lanes of the row, and the last of them in the warp
    int step = kLanes * kItems;             // items from an access to the next
    int accesses = kVectors;                // that have items
    bool live = true;                       // the row is not past the last one

    __device__ __forceinline__ Position at(int j) const { return first + j * step; }  // of access j

    __device__ __forceinline__ bool reaches(int j) const { return live && at(j) < end; }

    // Scan position of the first item of run j.
    __device__ __forceinline__ Position begin(int j) const {
        return kRuns == 1 ? first + lane * (kRun - kItems) : at(j);
    }

    // Items from there to the end of the row.
    __device__ __forceinline__ Position rest(int j) const { return length - begin(j); }
};

struct Row {  // addresses of a thread's first access of each operand and output
    const Input* x;
    const Gate* g;
    Output* y;
};

// The first access of a contiguous tensor whose rows have this length.
template <class Item>
__device__ __forceinline__ Item* dense(Item* items, long long line, const Part& part, Position length) {
    return items + line * length + memory_index(part.first, kItems, length);
}

// ---- misaligned rows: accesses stay on boundaries, and overlap both ends of a row
__device__ __forceinline__ bool is_inside(Position position, Position end) {
    return (unsigned long long)position < (unsigned long long)end;
}

__device__ __forceinline__ bool is_whole(Position position, int items, Position end) {
    return position >= 0 && position <= end - items;
}

// Items before the row's first are ignored.
__device__ __forceinline__ void begin_row(Items& s, Position position) {
#pragma unroll
    for (int k = 0; k < kItems; ++k)
        if (position < -k) s.item[k] = identity();
}

// ---- loads and stores
// Whether accesses of operands may reach past the ends of a row.
constexpr bool kGuards = false;

// Read an item or an access: a load.
template <class To>
__device__ __forceinline__ void fetch(To* to, const void* from) {
    *to = *static_cast<const To*>(from);
}

// Read an access whose items are `step` apart, those in the row: as a whole, or one by one.
template <bool dense, bool guarded, class Item>
__device__ __forceinline__ void read_access(Vector<Item>* to, const Item* from, long long step, Position position,
                                            Position end) {
    if (dense && (!guarded || is_whole(position, kItems, end))) {
        fetch(to, from);
    } else {
#pragma unroll
        for (int k = 0; k < kItems; ++k)
            if (!guarded || is_inside(position + place_of(k, kItems), end))
                fetch(&to->item[k], from + k * step);
            else
                leave_out(to->item[k]);
    }
}

// Read accesses that lie as those of the output, or whose items are `step` apart, by rising address. `from` lies
// `shift` items further on than the output.
template <bool dense, int shift = 0, class Item>
__device__ __forceinline__ void read_row(Vector<Item>* to, const Part& part, const Item* from, long long step) {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = place_of(n, kVectors);
        const Item* const access = from + along(j * part.step) * step;
        if (part.reaches(j))
            read_access<dense, (kGuards || shift > 0)>(to + j, access, step, part.at(j) + shift, part.end);
        else
            leave_out(to[j]);
    }
}

// All accesses of a thread.
__device__ __forceinline__ Accesses load(const Part& part, const Row& row) {
    Accesses a;
    read_row<true>(a.x, part, row.x, 1);
    read_row<true>(a.g, part, row.g, 1);
    return a;
}

// Store an access: as a whole, or those of its items that are in the row.
template <class Item>
__device__ __forceinline__ void store_access(Item* to, const Vector<Item, kOutItems>& y, Position position,
                                             Position end) {
    if (kBoundary == 0 || is_whole(position, kOutItems, end)) {
        *reinterpret_cast<Vector<Item, kOutItems>*>(to) = y;
    } else {
#pragma unroll
        for (int k = 0; k < kOutItems; ++k)
            if (is_inside(position + place_of(k, kOutItems), end)) to[k] = y.item[k];
    }
}

// Store the results of access j.
__device__ __forceinline__ void store(const Part& part, const Row& row, int j, const Results& r) {
    const int access = kRuns == 1 ? j : 0;
    const Position step = along(j * part.step);
    store_access(row.y + step, r.y[access], part.at(j), part.end);
}

// ---- the scan of a thread's items, then across the lanes of their row or warp
// Exclusive prefixes of a thread's runs in their row or warp, which `before` precedes; returns the total.
__device__ __forceinline__ State scan_across(State (&p)[kRuns], Items (&s)[kRuns], State before, const Part& part) {
    State t[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) t[j] = scan_lanes(scan_items(s[j]), part.lane);
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        p[j] = chain_lanes(before, j < part.accesses ? t[j] : identity(), part.lane, part.last);
    return before;
}

// ---- the forward scan: from the last item to the first, so that items, lanes and warps are in reverse order
namespace forward_prefix {
constexpr bool kReverse = false;
typedef Value Output;
typedef Value State;  // scan state of a contiguous range of items

__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

// combine where `newer` is the state of one item.
__device__ __forceinline__ State append(State older, State newer) { return combine(older, newer); }

__device__ __forceinline__ State element(Gate g) {
    return lift((Value)(g));
}

__device__ __forceinline__ Output output_of(State state) { return state; }

struct Items {
    State item[kItems];
};

// Where an access of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }

// States of the items of run j.
__device__ __forceinline__ Items lift_items(const Accesses& a, int j) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        const int access = (j * kRun + k) / kItems, at = place_of(k % kItems, kItems);
        s.item[k] = element(a.g[access].item[at]);
    }
    return s;
}

// The total of consecutive items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        total = append(total, s.item[k]);
    }
    return total;
}

// Items before the row's first are ignored.
__device__ __forceinline__ void begin_row(Items& s, Position position) {
#pragma unroll
    for (int k = 0; k < kItems; ++k)
        if (position < -k) s.item[k] = identity();
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_down_sync(0xffffffffu, s, distance, kLanes);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, kLanes);
}

// Inclusive scan across the first `count` lanes.
template <int count = kLanes>
__device__ __forceinline__ State scan_lanes(State s, int lane) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const State older = shuffle_up(s, step);
        s = lane >= step ? combine(older, s) : s;
    }
    return s;
}

// The exclusive prefix of this lane's access, given that of the row's accesses; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane, int last = kLanes - 1) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, last));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const bool first = warp == kLanes - 1;
    const State older = shuffle(totals, first ? 0 : warp + 1);
    return first ? identity() : older;
}

// The result before each item.
__device__ __forceinline__ FormerVector results(State prefix, const Items& s) {
    FormerVector f;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
        f.item[place_of(k, kItems)] = output_of(prefix);
        prefix = append(prefix, s.item[k]);
    }
    return f;
}
}  // namespace forward_prefix

extern "C" __global__ void __launch_bounds__(kThreads)
prod_gradient_f32_n4096_gate_f32_reverse_exclusive_block(
    const Input* input, const Gate* gate, Output* output) {
    __shared__ State warp_total[kWarps];
    __shared__ forward_prefix::State before_total[kWarps];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int warps = kWarps, warp_items = stripes * stripe;

    // ---- one row per block; a warp holds `stripes` stripes of it
    const long long line = blockIdx.x;
    const Position first = warp * warp_items + lane * kItems;
    Part part = {first, length, length, lane};
    const Row row = {dense(input, line, part, length), dense(gate, line, part, length), dense(output, line, part, length)};

    // ---- load
    Accesses a = load(part, row);

    // ---- the forward scan's prefix before each item
    forward_prefix::Items b[kVectors];
    forward_prefix::State u[kVectors], ahead = forward_prefix::identity();
    const int later = kLanes - 1 - lane;  // lanes that precede this one in the forward scan
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
        b[j] = forward_prefix::lift_items(a, j);
        forward_prefix::begin_row(b[j], part.end - part.at(j) - kItems);
        u[j] = forward_prefix::scan_lanes(forward_prefix::scan_items(b[j]), later);
    }
#pragma unroll
    for (int j = kVectors - 1; j >= 0; --j) u[j] = forward_prefix::chain_lanes(ahead, u[j], later, 0);
    if (lane == 0) before_total[warp] = ahead;
    __syncthreads();
    const forward_prefix::State all = forward_prefix::scan_lanes(lane < warps ? before_total[lane] : forward_prefix::identity(), later);
    const forward_prefix::State behind = forward_prefix::warps_before(all, warp);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) a.f[j] = forward_prefix::results(forward_prefix::combine(behind, u[j]), b[j]);

    // ---- scan the items in their thread, then across the lanes
    Items s[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        s[j] = lift_items(a, j);
    State p[kRuns];
    const State total = scan_across(p, s, identity(), part);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = total;
    __syncthreads();
    const State totals = scan_lanes<kWarps>(lane < warps ? warp_total[lane] : identity(), lane);
    State prefix = warps_before(totals, warp);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) p[j] = combine(prefix, p[j]);

    // ---- store
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = place_of(n, kVectors);
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
        cudaLaunchKernel(prod_gradient_f32_n4096_gate_f32_reverse_exclusive_block,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
