// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-i32-n100-mask_b8-reverse
//          100 int32 items, the bool mask selects, reverse, int64 out
// plan     staged: threads 32, items 2, tiles 1, rows 4, lanes 8, piece 14, unroll 7
//          4 rows of 100 items, contiguous in memory: copied coalesced, scanned in shared memory
// numbers  rule: staged
// target   sm_90
// content  sha256 bbe9a43df2acc1d3 of everything below this banner
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
constexpr Position length = 100;  // items per line
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 32;  // threads per block
constexpr int kWarps = 1;  // warps per block
constexpr int kLanes = 8;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 2;  // items per vector load
constexpr int kVectors = 1;  // vector loads per run
constexpr int kRun = 2;  // consecutive items that a thread scans serially
constexpr int kOutItems = 2;  // items per vector store
constexpr int kRuns = 7;  // runs in a lane's piece of a row
constexpr int kUnroll = 7;  // runs that a lane processes per loop iteration
constexpr int kTurns = 1;  // rows that a lane processes per loop iteration
constexpr int kRoom = 400;  // items of a warp's rows in shared memory
constexpr int kSlack = 0;  // bytes by which rows may start after a 16-byte boundary
constexpr bool kKept = true;  // a lane keeps its piece in registers while lanes exchange totals
constexpr bool kInitial = false;  // rows have a carry-in
constexpr bool kSerial = false;  // each result of a vector load is computed from the one before it
constexpr int rows = 4;  // rows per warp
constexpr int lane_bits = 3;  // log2 of the lanes per row
constexpr int piece = 14;  // items per lane
static_assert(kThreads % 32 == 0, "blocks of whole warps");

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
// Asynchronous global-to-shared copy of 4, 8 or 16 bytes (cp.async), 16 with L1 bypass (cp.async.cg) if so asked.
// Fewer bytes pass through a register.
template <bool bypasses = false, class Item>
__device__ __forceinline__ void copy_async(Item* shared, const void* global) {
    [[maybe_unused]] const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    if constexpr (sizeof(Item) < 4)
        *shared = *static_cast<const Item*>(global);
    else if constexpr (bypasses && sizeof(Item) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(global), "n"(sizeof(Item)) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x, Mask m) {
    return m ? lift((unsigned long long)((long long)x)) : identity();
}

__device__ __forceinline__ Output output_of(State state) { return (long long)state; }

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// ---- accesses hold items in memory order, Items hold states in scan order
template <class Item, int count = kItems>
struct alignas(count * sizeof(Item)) Vector {  // one access
    static_assert((count & (count - 1)) == 0 && sizeof(Item) * count <= 16, "an access is one instruction");
    Item item[count];
};
typedef Vector<Input> InputVector;
typedef Vector<Mask> MaskVector;
typedef Vector<Output, kOutItems> OutputVector;
struct Accesses {  // how a thread addresses its items of a tile
    Vector<Input> x[kVectors];
    Vector<Mask> m[kVectors];
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
        s.item[k] = element(a.x[access].item[at], a.m[access].item[at]);
    }
    return s;
}

// ---- the items of a thread
// The total of consecutive items; leaves their inclusive scan in place.
__device__ __forceinline__ State scan_items(Items& s) {
    State total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        total = s.item[k] = combine(total, s.item[k]);
    }
    return total;
}

struct Result {  // of one item
    Output y;
};

__device__ __forceinline__ Result result_of(State state) {
    return {output_of(state)};
}

constexpr bool kExclusive = false;  // a result is the prefix before its item

// Call use(k, result) for each item, in order, given the prefix before the items.
template <class Use>
__device__ __forceinline__ void each_result(const State& prefix, const Items& s, Use use) {
    State last = prefix;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = combine(prefix, s.item[k]);
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
    return __shfl_up_sync(0xffffffffu, s, distance, kLanes);
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

// ---- a warp's rows in shared memory, contiguous and in memory order
struct Staged {
    alignas(16) Input input[kRoom + kSlack / sizeof(Input)];
    alignas(16) Mask mask[kRoom + kSlack / sizeof(Mask)];
    alignas(16) Output output[kRoom + kSlack / sizeof(Output)];
};

struct Rows {  // one row or several in global or shared memory, by operand and output
    const Input* input;
    const Mask* mask;
    Output* output;
};

__device__ __forceinline__ Rows advance(const Rows& rows, long long items, long long results) {
    return {rows.input + items, rows.mask + items,
            rows.output + results};
}

// Items between the preceding 16-byte boundary and the rows.
template <class Item>
__device__ __forceinline__ int phase(const Item* rows) {
    return kSlack == 0 ? 0 : (int)((unsigned long long)rows % 16 / sizeof(Item));
}

// A warp copies items between global and shared memory, where they lie alike after a 16-byte boundary: by 16-byte
// accesses, and single items at both ends.
template <bool async, class Item>
__device__ __forceinline__ void copy_items(Item* to, const Item* from, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
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
    if (kSlack == 0 && end == kRoom) {  // all rows of the warp exist, and end on a boundary
#pragma unroll 8
        for (int step = 0; step < kRoom / stride; ++step, i += stride) copy(i);
        if (i < kRoom) copy(i);
        return;
    }
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (i += first; i < whole; i += stride) copy(i);
    if (lane >= begin && lane < first && lane < end) to[lane] = from[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) to[last] = from[last];
}

// Copy a warp's rows to shared memory, and return where they begin there.
__device__ __forceinline__ Rows read_rows(Staged& staged, const Rows& rows, int count, int lane) {
    copy_items<true>(staged.input + phase(rows.input), rows.input, count, lane);
    copy_items<true>(staged.mask + phase(rows.mask), rows.mask, count, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    return {staged.input + phase(rows.input), staged.mask + phase(rows.mask),
            staged.output + phase(rows.output)};
}

// Copy the results of a warp's rows to global memory.
__device__ __forceinline__ void write_rows(const Rows& rows, const Staged& staged, int count, int lane) {
    __syncwarp();
    copy_items<false>(rows.output, staged.output + phase(rows.output), count, lane);
}

// Scan a row, of which read(i, rest) gives the run of items that begins with item i of a lane's piece, and `rest` items
// of it remain; write(i, rest, prefix, run) stores its results. Lanes that share the row first reduce a piece each and
// scan the totals; then each lane scans its piece.
template <bool alone, class Read, class Write>
__device__ __forceinline__ void scan_row(const Read& read, const Write& write, State prefix, Position length, int part,
                                         int piece) {
    const int rest = length - part * piece;  // items to the end of the row
    const int items = rest < piece ? rest : piece;
    constexpr bool kept = kKept && !alone;  // the items stay in registers in between
    constexpr int steps = kept ? kRuns : kUnroll;
    const int end = kept ? kRuns * kRun : items;
    Items s[kept ? kRuns : 1];
    if constexpr (!alone) {
        State total = identity();
#pragma unroll steps
        for (int i = 0; i < end; i += kRun) {
            if (i >= items) continue;
            Items& scanned = s[kept ? i / kRun : 0];
            scanned = read(i, items - i);
            total = kRuns == 1 ? scan_items(scanned) : combine(total, scan_items(scanned));
        }
        const State older = shuffle_up(scan_lanes(total, part), 1);
        if (part > 0) prefix = kInitial ? combine(prefix, older) : older;
    }
#pragma unroll steps
    for (int i = 0; i < end; i += kRun) {
        if (i >= items) continue;
        Items& scanned = s[kept ? i / kRun : 0];
        if constexpr (!kept) scanned = read(i, items - i);
        const State total = kept && !kSerial ? scanned.item[kRun - 1] : scan_items(scanned);
        write(i, items - i, prefix, scanned);
        prefix = combine(prefix, total);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
sum_i32_n100_mask_b8_reverse_staged(
    const Input* input, const Mask* mask, Output* output, long long lines) {
    // ---- a warp has `rows` rows, independent of other warps
    __shared__ Staged of_warp[kWarps];
    const int lane = threadIdx.x % 32;
    const int warp = kWarps > 1 ? threadIdx.x / 32 : 0;
    const long long line = ((long long)blockIdx.x * kWarps + warp) * rows;
    if (kWarps > 1 && line >= lines) return;

    // ---- copy the rows to shared memory
    const int count = (int)(lines - line < rows ? lines - line : rows);  // rows that exist
    const Rows all = {input, mask, output};
    const Rows global = advance(all, line * length, line * length);
    const Rows copied = read_rows(of_warp[warp], global, count * length, lane);

    // ---- scan some rows at once, by 1 << lane_bits lanes each; items past the last row are scanned, not stored
    const int at_once = 32 >> lane_bits, turns = rows >> (5 - lane_bits);
    const int own_row = lane >> lane_bits, part = lane & ((1 << lane_bits) - 1), start = part * piece;
#pragma unroll kTurns
    for (int turn = 0; turn < turns; ++turn) {
        const int row = own_row + turn * at_once;
        const Position first = memory_index(start, kItems, length);  // of the lane's piece
        const Rows at = advance(copied, row * length + first, row * length + first);
        const State begin = identity();
        const auto read = [&](int i, int rest) {
            Accesses a;
#pragma unroll
            for (int j = 0; j < kVectors; ++j) {
                // Accesses past the piece repeat the first one: no stored result depends on them, and their items are
                // as great as those of the row.
                const bool inside = j == 0 || j * kItems < rest;
                const Rows from = advance(at, along(i + j * kItems), 0);
                a.x[j] = inside ? *reinterpret_cast<const InputVector*>(from.input) : a.x[0];
                a.m[j] = inside ? *reinterpret_cast<const MaskVector*>(from.mask) : a.m[0];
            }
            return lift_items(a, 0);
        };
        const auto write = [&](int i, int rest, State prefix, const Items& s) {
            const Results r = make_results(prefix, s);
#pragma unroll
            for (int j = 0; j < kVectors; ++j) {
                if (j > 0 && j * kItems >= rest) continue;
                const Rows to = advance(at, 0, along(i + j * kItems));
                *reinterpret_cast<OutputVector*>(to.output) = r.y[j];
            }
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
