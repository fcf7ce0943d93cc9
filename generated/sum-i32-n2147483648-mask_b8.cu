// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-i32-n2147483648-mask_b8
//          2147483648 int32 items, the bool mask selects, int64 out
// plan     wave: threads 512, items 2, tiles 524288, vectors 4, boundary 0, stages 5, ahead 3, blocks 1
//          rows of 2147483648: persistent blocks claim the tiles of all rows in order
// target   sm_90
// content  sha256 712e7eda9ad08b9a of everything below this banner
// again    scanops generate sum-i32-n2147483648-mask_b8 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef int Input;  // int32
typedef unsigned char Mask;  // bool
typedef long long Output;  // int64
typedef unsigned long long Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

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
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

// A masked-out item counts as the identity, whatever its value.
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift((unsigned long long)((long long)(x))) : identity(); }

__device__ __forceinline__ Output result(State state) { return (long long)(state); }

// ---- 2 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(2 * sizeof(Input)) InputVector {
    Input item[2];
};
struct alignas(2 * sizeof(Mask)) MaskVector {
    Mask item[2];
};
struct alignas(2 * sizeof(Output)) OutputVector {
    Output item[2];
};
struct Items {
    State item[2];
};

__device__ __forceinline__ void copy_input(InputVector* slot, const Input* first) {
    copy_async_8(slot, first);
}

__device__ __forceinline__ MaskVector load_mask(const Mask* first) {
    return *reinterpret_cast<const MaskVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const MaskVector& m) {
    Items s;
    s.item[0] = element(x.item[0], m.item[0]);
    s.item[1] = element(x.item[1], m.item[1]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    s.item[1] = combine(s.item[0], s.item[1]);
    return s.item[1];
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
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
    InputVector x[5][4][512];
    MaskVector m[5][4][512];
};

struct Tile {  // scanned, without the prefix of preceding tiles
    long long number;
    State warps;      // exclusive prefix of this warp in the tile
    State prefix[4];  // exclusive prefix of this thread's accesses in its warp
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

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, const Mask* mask, Output* output, long long lines, Board board) {
    dynamic_shared(Ring, ring);
    __shared__ State warp_total[2][16];  // by the parity of the step
    __shared__ State group_total[2][16];  // by the parity of the step
    __shared__ unsigned long long ticket[2];  // by the parity of the step

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = warp * 256 + lane * 2;  // place of this thread's first item in a tile
    const long long tiles = lines * 524288;
    MaskVector m0, m1, m2, m3;  // loads in flight: stored to the ring a step later
    const auto load_tile = [&](unsigned stage, long long number) {
        if (number < tiles) {
            const long long line = number / 524288;
            const long long first = (long long)(number % 524288) * 4096 + place;
            const Input* x = input + line * 2147483648 + first;
            const Mask* m = mask + line * 2147483648 + first;
            copy_input(&ring.x[stage][0][threadIdx.x], x);
            copy_input(&ring.x[stage][1][threadIdx.x], x + 64);
            copy_input(&ring.x[stage][2][threadIdx.x], x + 128);
            copy_input(&ring.x[stage][3][threadIdx.x], x + 192);
            m0 = load_mask(m);
            m1 = load_mask(m + 64);
            m2 = load_mask(m + 128);
            m3 = load_mask(m + 192);
        }
        copy_async_commit();
    };

    // ---- claim and load the first tiles
    if (threadIdx.x == 0) ticket[0] = atomicAdd(board.tickets, 2ull);
    __syncthreads();
    const unsigned launch = launch_of(ticket[0]);
    long long loaded0 = (unsigned)ticket[0], loaded1 = (unsigned)ticket[0] + 1;  // in the ring, not scanned yet
    load_tile(0, loaded0);
    ring.m[0][0][threadIdx.x] = m0;
    ring.m[0][1][threadIdx.x] = m1;
    ring.m[0][2][threadIdx.x] = m2;
    ring.m[0][3][threadIdx.x] = m3;
    load_tile(1, loaded1);
    unsigned long long taken = threadIdx.x == 0 ? take_ticket(board) : 0;  // one step ahead of its use
    __syncthreads();

    Tile tile0, tile1, tile2, tile3;  // tile k is stored k steps later
    tile0.number = tile1.number = tile2.number = -1;
    State base = identity();  // groups of 32 tiles that precede the current tile in its row, folded in order
    long long base_line = -1;
    int group = 0;  // number of groups in base
    int index = 0;  // index of the current tile in its row
    Words words = {};  // the status this thread waits for, as read one step ahead

    for (int step = -3; tile0.number < tiles; ++step) {
        const unsigned parity = step & 1;
        if (threadIdx.x == 0) {
            ticket[parity] = taken;
            taken = take_ticket(board);
        }

        // ---- scan the tile that is stored 3 step(s) later, without the prefix of preceding tiles
        copy_async_wait<1>();
        tile3.number = loaded0;
        const unsigned arrived = (unsigned)(step + 3) % 5;
        State before = identity();
        {
            Items s0 = lift_items(ring.x[arrived][0][threadIdx.x], ring.m[arrived][0][threadIdx.x]);
            Items s1 = lift_items(ring.x[arrived][1][threadIdx.x], ring.m[arrived][1][threadIdx.x]);
            Items s2 = lift_items(ring.x[arrived][2][threadIdx.x], ring.m[arrived][2][threadIdx.x]);
            Items s3 = lift_items(ring.x[arrived][3][threadIdx.x], ring.m[arrived][3][threadIdx.x]);
            const State t0 = scan_lanes(scan_items(s0), lane);
            const State t1 = scan_lanes(scan_items(s1), lane);
            const State t2 = scan_lanes(scan_items(s2), lane);
            const State t3 = scan_lanes(scan_items(s3), lane);
            tile3.prefix[0] = chain_lanes(before, t0, lane);
            tile3.prefix[1] = chain_lanes(before, t1, lane);
            tile3.prefix[2] = chain_lanes(before, t2, lane);
            tile3.prefix[3] = chain_lanes(before, t3, lane);
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
        const State totals = scan_lanes(lane < 16 ? warp_total[parity][lane] : identity(), lane);
        tile3.warps = warps_before(totals, warp);
        if (threadIdx.x == 15 && tile3.number < tiles) publish(board, launch, tile3.number, totals);

        // ---- read the totals before the next tile, one step ahead of their use
        const long long next_line = tile1.number / 524288;
        const int next_index = (int)(tile1.number % 524288);
        const int next_peer = ((next_line == base_line ? index / 32 : 0) + warp) * 32 + lane;
        if (next_peer < next_index && tile1.number < tiles) words = peek(board, tile1.number - next_index + next_peer);

        // ---- fold the preceding totals in a fixed order
        int w = 0;
        for (; w < 16 && group < index / 32; ++w, ++group) base = combine(base, group_total[parity][w]);
        while (w == 16) {  // more groups than warps
            peer = (group + warp) * 32 + lane;
            total = peer < index ? await(board, launch, peers + peer, peek(board, peers + peer)) : identity();
            total = scan_lanes(total, lane);
            __syncthreads();
            if (lane == 31) group_total[parity][warp] = total;
            __syncthreads();
            for (w = 0; w < 16 && group < index / 32; ++w, ++group) base = combine(base, group_total[parity][w]);
        }
        const State prefix = combine(combine(base, group_total[parity][w]), tile0.warps);

        // ---- read the current tile from the ring, and issue the loads of its successor before any store
        const unsigned stage = (unsigned)(step + 5) % 5;
        const long long line = tile0.number / 524288;
        const long long first = (long long)(tile0.number % 524288) * 4096 + place;
        Output* y = output + line * 2147483648 + first;
        Items s0 = lift_items(ring.x[stage][0][threadIdx.x], ring.m[stage][0][threadIdx.x]);
        Items s1 = lift_items(ring.x[stage][1][threadIdx.x], ring.m[stage][1][threadIdx.x]);
        Items s2 = lift_items(ring.x[stage][2][threadIdx.x], ring.m[stage][2][threadIdx.x]);
        Items s3 = lift_items(ring.x[stage][3][threadIdx.x], ring.m[stage][3][threadIdx.x]);
        scan_items(s0);
        scan_items(s1);
        scan_items(s2);
        scan_items(s3);
        ring.m[(unsigned)(step + 4) % 5][0][threadIdx.x] = m0;
        ring.m[(unsigned)(step + 4) % 5][1][threadIdx.x] = m1;
        ring.m[(unsigned)(step + 4) % 5][2][threadIdx.x] = m2;
        ring.m[(unsigned)(step + 4) % 5][3][threadIdx.x] = m3;
        loaded0 = loaded1;
        loaded1 = (unsigned)ticket[parity];
        load_tile(stage, loaded1);

        // ---- store
        if (tile0.number >= 0) {
            store_items(y, combine(prefix, tile0.prefix[0]), s0);
            store_items(y + 64, combine(prefix, tile0.prefix[1]), s1);
            store_items(y + 128, combine(prefix, tile0.prefix[2]), s2);
            store_items(y + 192, combine(prefix, tile0.prefix[3]), s3);
        }

        // ---- advance to the next tile
        tile0 = tile1;
        tile1 = tile2;
        tile2 = tile3;
        index = next_index;
        if (next_line != base_line) {
            base_line = next_line;
            base = identity();
            group = 0;
        }
    }
    if (threadIdx.x == 0) pass_on(board, taken, (unsigned)tiles + gridDim.x * 6 - 1);  // a block takes 6 surplus tickets
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
extern "C" long long scanops_workspace_bytes(long long lines, long long) { return 16 + lines * 524288 * 16; }

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long tiles = arguments->lines * 524288;
    const long long resident = (long long)arguments->multiprocessors * 1;
    const long long blocks = tiles < resident ? tiles : resident;
    unsigned long long* const workspace = (unsigned long long*)arguments->workspace;
    const Board board = {workspace, workspace + 2};
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 102400;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 102400);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output, arguments->lines, board));
}
#endif
