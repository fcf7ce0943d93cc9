// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n268435456-few
//          268435456 float32 items, few, float32 out
// plan     split: threads 256, items 4, tiles 43691, vectors 6, blocks 2
//          few rows of 268435456: their tiles are spread over all multiprocessors
// target   sm_90
// content  sha256 12784969837d4d6b of everything below this banner
// again    scanops generate sum-f32-n268435456-few --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

#ifdef __CUDACC__  // on a CPU the emulator's cuda_runtime.h has these
// Words that blocks exchange: one access each, never from a cache that another block cannot see.
__device__ __forceinline__ void store_relaxed(unsigned long long* word, unsigned long long value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* word) {
    unsigned long long value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 items: as one access reads or writes them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
};
struct alignas(4 * sizeof(Output)) OutputVector {
    Output item[4];
};
struct Items {
    State item[4];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    y.item[2] = result(combine(prefix, s.item[2]));
    y.item[3] = result(combine(prefix, s.item[3]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    s.item[1] = element(x.item[1]);
    s.item[2] = element(x.item[2]);
    s.item[3] = element(x.item[3]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    s.item[1] = combine(s.item[0], s.item[1]);
    s.item[2] = combine(s.item[1], s.item[2]);
    s.item[3] = combine(s.item[2], s.item[3]);
    return s.item[3];
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

// The prefix of this lane's vector, given what precedes the vectors of all lanes; moves `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, 31));
    return prefix;
}

// The total of the warps before this one, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

// ---- what blocks tell each other: the total of a tile, in 32-bit pieces that each share a word with their flag.
// A word is written and read whole, so a piece is there when its flag is, and no fence is needed.
struct Board {
    unsigned* claimed;  // tiles claimed so far
    unsigned long long* word;  // 1 a tile: the flag above the piece
};

__device__ __forceinline__ void publish(const Board& board, long long tile, State total) {
    unsigned piece[1];
    memcpy(piece, &total, sizeof(State));
    store_relaxed(board.word + tile * 1 + 0, 1ull << 32 | piece[0]);
}

__device__ __forceinline__ State await(const Board& board, long long tile) {
    unsigned long long word0;
    do {
        word0 = load_relaxed(board.word + tile * 1 + 0);
    } while (word0 >> 32 == 0);
    const unsigned piece[1] = {(unsigned)word0};
    State total;
    memcpy(&total, piece, sizeof(State));
    return total;
}

__global__ void __launch_bounds__(256, 2)
scan_kernel(const Input* input, Output* output, long long lines, Board board) {
    __shared__ State warp_total[2][8];  // by the parity of the step
    __shared__ State group_total[2][8];  // by the parity of the round
    __shared__ unsigned claim[2];  // by the parity of the step

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = warp * 768 + lane * 4;  // of this thread's first item in a tile
    const long long tiles = lines * 43691;

    // ---- claim two tiles, load the first
    if (threadIdx.x == 0) claim[1] = atomicAdd(board.claimed, 2);
    __syncthreads();
    long long current = -1;  // scanned, its total published, not stored yet
    long long next = claim[1];  // its loads are in flight
    long long after = next + 1;  // claimed
    InputVector x0, x1, x2, x3, x4, x5;
    const auto load_tile = [&](long long tile) {
        const bool live = tile < tiles;
        const long long line = tile / 43691;
        const int first = (int)(tile % 43691) * 6144 + place;
        const Input* x = input + line * 268435456 + first;
        x0 = live && first < 268435456 ? load_input(x) : InputVector{};
        x1 = live && first + 128 < 268435456 ? load_input(x + 128) : InputVector{};
        x2 = live && first + 256 < 268435456 ? load_input(x + 256) : InputVector{};
        x3 = live && first + 384 < 268435456 ? load_input(x + 384) : InputVector{};
        x4 = live && first + 512 < 268435456 ? load_input(x + 512) : InputVector{};
        x5 = live && first + 640 < 268435456 ? load_input(x + 640) : InputVector{};
    };
    load_tile(next);

    Items s0, s1, s2, s3, s4, s5;  // of the current tile
    State p0, p1, p2, p3, p4, p5;  // what precedes them in their warp
    State warps = identity();  // what precedes this warp in the current tile
    State base = identity();  // the groups of 32 tiles that lie wholly before the current tile, folded in order
    long long base_line = -1;
    int group = 0;  // the groups in base
    int round = 0;

    for (int step = 0;; ++step) {
        // ---- items of the next tile become states, in scan order
        Items n0 = lift_items(x0);
        Items n1 = lift_items(x1);
        Items n2 = lift_items(x2);
        Items n3 = lift_items(x3);
        Items n4 = lift_items(x4);
        Items n5 = lift_items(x5);

        // ---- loads of the tile after, in flight during all that follows
        load_tile(after);

        // ---- scan the next tile as far as it goes without its prefix, and publish its total
        const State t0 = scan_lanes(scan_items(n0), lane);
        const State t1 = scan_lanes(scan_items(n1), lane);
        const State t2 = scan_lanes(scan_items(n2), lane);
        const State t3 = scan_lanes(scan_items(n3), lane);
        const State t4 = scan_lanes(scan_items(n4), lane);
        const State t5 = scan_lanes(scan_items(n5), lane);
        State before = identity();
        const State q0 = chain_lanes(before, t0, lane);
        const State q1 = chain_lanes(before, t1, lane);
        const State q2 = chain_lanes(before, t2, lane);
        const State q3 = chain_lanes(before, t3, lane);
        const State q4 = chain_lanes(before, t4, lane);
        const State q5 = chain_lanes(before, t5, lane);
        if (lane == 31) warp_total[step % 2][warp] = before;
        if (threadIdx.x == 0) claim[step % 2] = atomicAdd(board.claimed, 1);
        __syncthreads();
        const State totals = scan_lanes(lane < 8 ? warp_total[step % 2][lane] : identity(), lane);
        const State next_warps = warps_before(totals, warp);
        const State total = shuffle(totals, 7);
        if (threadIdx.x == 0 && next < tiles) publish(board, next, total);

        // ---- the current tile: fold the totals before it, always in the same order, then store
        if (current >= 0) {
            const long long line = current / 43691;
            const int index = (int)(current % 43691);  // of the tile in its line
            if (line != base_line) {
                base_line = line;
                base = identity();
                group = 0;
            }
            for (bool folded = false; !folded; round ^= 1) {
                const int peer = (group + warp) * 32 + lane;  // a warp waits for a group of 32 tiles
                const State s = peer < index ? await(board, line * 43691 + peer) : identity();
                const State inclusive = scan_lanes(s, lane);
                if (lane == 31) group_total[round][warp] = inclusive;
                __syncthreads();
                int w = 0;
                for (; w < 8 && group < index / 32; ++w, ++group) base = combine(base, group_total[round][w]);
                if (w < 8) {  // the group that the tile itself is in
                    warps = combine(combine(base, group_total[round][w]), warps);
                    folded = true;
                }
            }
            const int first = (int)index * 6144 + place;
            Output* y = output + line * 268435456 + first;
            if (first < 268435456) store_items(y, combine(warps, p0), s0);
            if (first + 128 < 268435456) store_items(y + 128, combine(warps, p1), s1);
            if (first + 256 < 268435456) store_items(y + 256, combine(warps, p2), s2);
            if (first + 384 < 268435456) store_items(y + 384, combine(warps, p3), s3);
            if (first + 512 < 268435456) store_items(y + 512, combine(warps, p4), s4);
            if (first + 640 < 268435456) store_items(y + 640, combine(warps, p5), s5);
        }

        if (next >= tiles) break;
        current = next;
        next = after;
        after = claim[step % 2];
        warps = next_warps;
        s0 = n0;
        p0 = q0;
        s1 = n1;
        p1 = q1;
        s2 = n2;
        p2 = q2;
        s3 = n3;
        p3 = q3;
        s4 = n4;
        p4 = q4;
        s5 = n5;
        p5 = q5;
    }
}

#ifndef __CUDACC_RTC__  // the host's side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    void* output;
    void* workspace;
    long long lines;  // scanned sequences
    int multiprocessors;
};

extern "C" int scanops_abi() { return 1; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// The claim counter, then the words of every tile.
extern "C" long long scanops_workspace_bytes(long long lines) { return 16 + lines * 43691 * 8; }

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long tiles = arguments->lines * 43691;
    const long long resident = (long long)arguments->multiprocessors * 2;
    const long long blocks = tiles < resident ? tiles : resident;
    char* const workspace = (char*)arguments->workspace;
    const Board board = {(unsigned*)workspace, (unsigned long long*)(workspace + 16)};
    const size_t bytes = (size_t)scanops_workspace_bytes(arguments->lines);
    const cudaError_t cleared = cudaMemsetAsync(workspace, 0, bytes, (cudaStream_t)stream);
    if (cleared != cudaSuccess) return cleared;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel,
                              (const Input*)arguments->input, (Output*)arguments->output, arguments->lines, board);
}
#endif
