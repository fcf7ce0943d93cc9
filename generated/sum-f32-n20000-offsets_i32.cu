// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n20000-offsets_i32
//          20000 float32 items, offsets_i32, float32 out
// plan     wave: threads 256, items 4, tiles 7, vectors 3, boundary 0, stages 4, ahead 2, blocks 3
//          rows of 20000: persistent blocks claim the tiles of all rows in order
// target   sm_90
// content  sha256 fa4973f978c44dea of everything below this banner
// again    scanops generate sum-f32-n20000-offsets_i32 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value Plain;  // scan state of a contiguous range of items
struct State {  // operator state and segment bounds of a range
    Plain plain;
    int bounds;  // 1: a segment begins, which hides older items; 2: it begins at the last item
};

typedef int Offset;
struct Segments {
    const Offset* begin;  // begins of the segments after the first, ascending
    int count;
};

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
// Tile status words: relaxed 64-bit accesses at GPU scope, which L1 does not serve.
__device__ __forceinline__ void store_relaxed(unsigned long long* word, unsigned long long value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* word) {
    unsigned long long value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

// Asynchronous global-to-shared copies (cp.async).
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_8(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                                      \
    extern __shared__ __align__(16) unsigned char name##_bytes[];         \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ Plain plain_identity() { return 0; }

__device__ __forceinline__ Plain lift(Value x) { return x; }

__device__ __forceinline__ Plain plain_combine(Plain older, Plain newer) {
    return older + newer;
}

__device__ __forceinline__ State identity() { return {plain_identity(), 0}; }

__device__ __forceinline__ State combine(State older, State newer) {
    if (newer.bounds) return newer;
    return {plain_combine(older.plain, newer.plain), older.bounds & 1};
}

// The number of segments that begin before `place`.
__device__ __forceinline__ int begun_before(const Segments& segments, long long place) {
    int low = 0, high = segments.count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (segments.begin[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// The segments that begin in [first, end): a search by all lanes of a warp for the same range.
__device__ __forceinline__ Segments begun_between(const Segments& segments, long long first, long long end, int lane) {
    int low = 0, count = segments.count;  // range that holds the first of them
    while (count > 0) {  // split the rest into 32 parts; count those that end before `first`
        const int part = (count + 31) / 32, last = (lane + 1) * part - 1;
        const bool before = last < count && segments.begin[low + last] < first;
        const int whole = __popc(__ballot_sync(0xffffffffu, before));
        low += whole * part;
        count = min(count - whole * part, part - 1);
    }
    int found = 0, more = 32;
    while (more == 32) {
        const int k = low + found + lane;
        more = __popc(__ballot_sync(0xffffffffu, k < segments.count && segments.begin[k] < end));
        found += more;
    }
    return {segments.begin + low, found};
}

// Bit k: whether a segment begins at item `first` + k.
__device__ __forceinline__ unsigned starts_from(const Segments& segments, long long first) {
    unsigned starts = 0;
    for (int k = begun_before(segments, first); k < segments.count && segments.begin[k] < first + 4; ++k) starts |= (unsigned)1 << (segments.begin[k] - first);
    return starts;
}

__device__ __forceinline__ State element(Input x, bool b) { return {lift(x), b ? 3 : 0}; }

__device__ __forceinline__ Output plain_result(Plain state) { return state; }

__device__ __forceinline__ Output result(State state) { return plain_result(state.plain); }

// ---- 4 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
};
struct alignas(4 * sizeof(Output)) OutputVector {
    Output item[4];
};
struct Items {
    State item[4];
};

__device__ __forceinline__ void copy_input(InputVector* slot, const Input* first) {
    copy_async_16(slot, first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    prefix = combine(prefix, s.item[0]);
    y.item[0] = result(prefix);
    prefix = combine(prefix, s.item[1]);
    y.item[1] = result(prefix);
    prefix = combine(prefix, s.item[2]);
    y.item[2] = result(prefix);
    prefix = combine(prefix, s.item[3]);
    y.item[3] = result(prefix);
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x, int i, const Segments& segments) {
    Items s;
    const unsigned starts = starts_from(segments, i);
    s.item[0] = element(x.item[0], starts & 1);
    s.item[1] = element(x.item[1], starts >> 1 & 1);
    s.item[2] = element(x.item[2], starts >> 2 & 1);
    s.item[3] = element(x.item[3], starts >> 3 & 1);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = s.item[0];
    total = combine(total, s.item[1]);
    total = combine(total, s.item[2]);
    total = combine(total, s.item[3]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.plain, distance, 32), __shfl_up_sync(0xffffffffu, s.bounds, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.plain, source, 32), __shfl_sync(0xffffffffu, s.bounds, source, 32)};
}

// Inclusive scan across lanes, 5 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_up(s, 1);
    if (lane >= 1) s = combine(older, s);
    older = shuffle_up(s, 2);
    if (lane >= 2) s = combine(older, s);
    older = shuffle_up(s, 4);
    if (lane >= 4) s = combine(older, s);
    older = shuffle_up(s, 8);
    if (lane >= 8) s = combine(older, s);
    older = shuffle_up(s, 16);
    if (lane >= 16) s = combine(older, s);
    return s;
}

// The exclusive prefix of this lane's vector, given that of the row's vectors; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, 31));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

struct Ring {  // by stage, access and thread
    InputVector x[4][3][256];
};

struct Tile {  // scanned, without the prefix of preceding tiles
    long long number;
    State warps;      // exclusive prefix of this warp in the tile
    State prefix[3];  // exclusive prefix of this thread's accesses in its warp
};

// ---- tile status for decoupled look-back: value and launch epoch in one 64-bit word, accessed as a whole, so no fence is
// needed. A word of an earlier launch is invalid by its epoch, so nothing needs to be cleared between launches.
struct Board {
    unsigned long long* tickets;  // finished launches (high half), tickets taken in this one (low half)
    unsigned long long* word;     // 2 per tile: launch epoch (high half), a piece of the tile's total (low half)
};

struct Words {
    unsigned long long piece[2];
};

__device__ __forceinline__ unsigned long long take_ticket(const Board& board) { return atomicAdd(board.tickets, 1ull); }

// The block with the last ticket of a launch advances the epoch for the next one.
__device__ __forceinline__ void pass_on(const Board& board, unsigned long long ticket, unsigned last) {
    if ((unsigned)ticket == last) store_relaxed(board.tickets, ((ticket >> 32) + 1) << 32);
}

__device__ __forceinline__ unsigned launch_of(unsigned long long ticket) { return (unsigned)(ticket >> 32) + 1; }

__device__ __forceinline__ void publish(const Board& board, unsigned launch, long long tile, State total) {
    unsigned piece[2];
    memcpy(piece, &total, sizeof(State));
    store_relaxed(board.word + tile * 2, (unsigned long long)launch << 32 | piece[0]);
    store_relaxed(board.word + tile * 2 + 1, (unsigned long long)launch << 32 | piece[1]);
}

__device__ __forceinline__ Words peek(const Board& board, long long tile) {
    Words words;
    words.piece[0] = load_relaxed(board.word + tile * 2);
    words.piece[1] = load_relaxed(board.word + tile * 2 + 1);
    return words;
}

// Spin until the tile's status is of this launch, then return the tile's total.
__device__ __forceinline__ State await(const Board& board, unsigned launch, long long tile, Words words) {
    while (words.piece[0] >> 32 != launch || words.piece[1] >> 32 != launch) words = peek(board, tile);
    const unsigned piece[2] = {(unsigned)words.piece[0], (unsigned)words.piece[1]};
    State total;
    memcpy(&total, piece, sizeof(State));
    return total;
}

__global__ void __launch_bounds__(256, 3)
scan_kernel(const Input* input, Output* output, long long lines, const Segments segments, Board board) {
    dynamic_shared(Ring, ring);
    __shared__ State warp_total[2][8];  // by the parity of the step
    __shared__ State group_total[2][8];  // by the parity of the step
    __shared__ unsigned long long ticket[2];  // by the parity of the step

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = warp * 384 + lane * 4;  // place of this thread's first item in a tile
    const long long tiles = lines * 7;
    const auto load_tile = [&](unsigned stage, long long number) {
        if (number < tiles) {
            const long long line = number / 7;
            const int first = (int)(number % 7) * 3072 + place;
            const Input* x = input + line * 20000 + first;
            if (first < 20000) copy_input(&ring.x[stage][0][threadIdx.x], x);
            if (first + 128 < 20000) copy_input(&ring.x[stage][1][threadIdx.x], x + 128);
            if (first + 256 < 20000) copy_input(&ring.x[stage][2][threadIdx.x], x + 256);
        }
        copy_async_commit();
    };

    // ---- claim and load the first tiles
    if (threadIdx.x == 0) ticket[0] = atomicAdd(board.tickets, 2ull);
    __syncthreads();
    const unsigned launch = launch_of(ticket[0]);
    long long loaded0 = (unsigned)ticket[0], loaded1 = (unsigned)ticket[0] + 1;  // in the ring, not scanned yet
    load_tile(0, loaded0);
    load_tile(1, loaded1);
    unsigned long long taken = threadIdx.x == 0 ? take_ticket(board) : 0;  // one step ahead of its use
    __syncthreads();

    Tile tile0, tile1, tile2;  // tile k is stored k steps later
    tile0.number = tile1.number = -1;
    State base = identity();  // groups of 32 tiles that precede the current tile in its row, folded in order
    long long base_line = -1;
    int group = 0;  // number of groups in base
    int index = 0;  // index of the current tile in its row
    Words words = {};  // the status this thread waits for, as read one step ahead

    for (int step = -2; tile0.number < tiles; ++step) {
        const unsigned parity = step & 1;
        if (threadIdx.x == 0) {
            ticket[parity] = taken;
            taken = take_ticket(board);
        }

        // ---- scan the tile that is stored 2 step(s) later, without the prefix of preceding tiles
        copy_async_wait<1>();
        tile2.number = loaded0;
        const unsigned arrived = (unsigned)(step + 2) % 4;
        State before = identity();
        {
            const int first = (int)(loaded0 % 7) * 3072 + place;
            const Segments near = begun_between(segments, (first - lane * 4), (first - lane * 4) + 384LL, lane);
            Items s0 = lift_items(ring.x[arrived][0][threadIdx.x], first, near);
            Items s1 = lift_items(ring.x[arrived][1][threadIdx.x], first + 128, near);
            Items s2 = lift_items(ring.x[arrived][2][threadIdx.x], first + 256, near);
            const State t0 = scan_lanes(scan_items(s0), lane);
            const State t1 = scan_lanes(scan_items(s1), lane);
            const State t2 = scan_lanes(scan_items(s2), lane);
            tile2.prefix[0] = chain_lanes(before, t0, lane);
            tile2.prefix[1] = chain_lanes(before, t1, lane);
            tile2.prefix[2] = chain_lanes(before, t2, lane);
        }
        if (lane == 31) warp_total[parity][warp] = before;

        // ---- look-back: the totals before the current tile, in groups of 32; each warp waits for one group
        const long long peers = tile0.number - index;  // the first tile of the row
        int peer = (group + warp) * 32 + lane;
        State total = peer < index ? await(board, launch, peers + peer, words) : identity();
        total = scan_lanes(total, lane);
        if (lane == 31) group_total[parity][warp] = total;
        __syncthreads();

        // ---- publish the total of the scanned tile
        const State totals = scan_lanes(lane < 8 ? warp_total[parity][lane] : identity(), lane);
        tile2.warps = warps_before(totals, warp);
        if (threadIdx.x == 7 && tile2.number < tiles) publish(board, launch, tile2.number, totals);

        // ---- read the totals before the next tile, one step ahead of their use
        const long long next_line = tile1.number / 7;
        const int next_index = (int)(tile1.number % 7);
        const int next_peer = ((next_line == base_line ? index / 32 : 0) + warp) * 32 + lane;
        if (next_peer < next_index && tile1.number < tiles) words = peek(board, tile1.number - next_index + next_peer);

        // ---- fold the preceding totals in a fixed order
        int w = 0;
        for (; w < 8 && group < index / 32; ++w, ++group) base = combine(base, group_total[parity][w]);
        while (w == 8) {  // more groups than warps
            peer = (group + warp) * 32 + lane;
            total = peer < index ? await(board, launch, peers + peer, peek(board, peers + peer)) : identity();
            total = scan_lanes(total, lane);
            __syncthreads();
            if (lane == 31) group_total[parity][warp] = total;
            __syncthreads();
            for (w = 0; w < 8 && group < index / 32; ++w, ++group) base = combine(base, group_total[parity][w]);
        }
        const State prefix = combine(combine(base, group_total[parity][w]), tile0.warps);

        // ---- read the current tile from the ring, and issue the loads of its successor before any store
        const unsigned stage = (unsigned)(step + 4) % 4;
        const long long line = tile0.number / 7;
        const int first = (int)(tile0.number % 7) * 3072 + place;
        Output* y = output + line * 20000 + first;
        const Segments near = begun_between(segments, (first - lane * 4), (first - lane * 4) + 384LL, lane);
        Items s0 = lift_items(ring.x[stage][0][threadIdx.x], first, near);
        Items s1 = lift_items(ring.x[stage][1][threadIdx.x], first + 128, near);
        Items s2 = lift_items(ring.x[stage][2][threadIdx.x], first + 256, near);
        loaded0 = loaded1;
        loaded1 = (unsigned)ticket[parity];
        load_tile(stage, loaded1);

        // ---- store
        if (tile0.number >= 0) {
            if (first < 20000) store_items(y, combine(prefix, tile0.prefix[0]), s0);
            if (first + 128 < 20000) store_items(y + 128, combine(prefix, tile0.prefix[1]), s1);
            if (first + 256 < 20000) store_items(y + 256, combine(prefix, tile0.prefix[2]), s2);
        }

        // ---- advance to the next tile
        tile0 = tile1;
        tile1 = tile2;
        index = next_index;
        if (next_line != base_line) {
            base_line = next_line;
            base = identity();
            group = 0;
        }
    }
    if (threadIdx.x == 0) pass_on(board, taken, (unsigned)tiles + gridDim.x * 5 - 1);  // a block takes 5 surplus tickets
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    const void* gate;
    const void* starts;  // head flags of segments
    void* output;
    void* indices;
    const void* carry_in;
    void* carry_out;
    const void* offsets;  // where segments begin
    void* workspace;
    long long carry_in_step;  // items from the carry-in of a line to that of the next
    long long segments;
    long long lines;   // scanned sequences
    long long length;  // items in a line, for kernels that take it
    int multiprocessors;
};

extern "C" int scanops_abi() { return 3; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Tickets, then the status words of every tile. Cleared once by the caller; launches that follow one another may reuse it.
extern "C" long long scanops_workspace_bytes(long long lines, long long) { return 16 + lines * 7 * 16; }

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const Segments segments = {(const Offset*)arguments->offsets, (int)arguments->segments};
    const long long tiles = arguments->lines * 7;
    const long long resident = (long long)arguments->multiprocessors * 3;
    const long long blocks = tiles < resident ? tiles : resident;
    unsigned long long* const workspace = (unsigned long long*)arguments->workspace;
    const Board board = {workspace, workspace + 2};
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 49152;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 49152);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines, segments, board));
}
#endif
