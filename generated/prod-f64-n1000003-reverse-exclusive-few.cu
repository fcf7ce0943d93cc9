// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f64-n1000003-reverse-exclusive-few
//          1000003 float64 items, reverse, exclusive, few, float64 out
// plan     split: threads 512, items 2, tiles 123, vectors 8, boundary 16, alone True
//          few rows of 1000003: each is split over several blocks at once
// target   sm_90
// content  sha256 b553cf7bd280a7e6 of everything below this banner
// again    scanops generate prod-f64-n1000003-reverse-exclusive-few --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef double Input;  // float64
typedef double Output;  // float64
typedef double Value;  // accumulator type
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

#endif

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

// Compensation: what rounding has lost so far, and a total with it added. Infinities and NaN carry none; -0 keeps its sign.
__device__ __forceinline__ Value lose(Value lost, Value older, Value newer) { return fma(lost, newer, fma(older, newer, -(older * newer))); }

__device__ __forceinline__ Value regain(Value total, Value lost) { return total - total == 0 && total != 0 ? total + lost : total; }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 2 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(2 * sizeof(Input)) InputVector {
    Input item[2];
};
struct alignas(2 * sizeof(Output)) OutputVector {
    Output item[2];
};
struct Items {
    State item[2];
};

// ---- misaligned rows: accesses stay on boundaries of 16 items and overlap both ends of a row
__device__ __forceinline__ bool is_inside(int position) { return (unsigned)position < 1000003; }

__device__ __forceinline__ bool is_whole(int position) { return (unsigned)position <= 1000001; }

__device__ __forceinline__ InputVector load_input(const Input* first, int position) {
    if (is_whole(position)) return *reinterpret_cast<const InputVector*>(first);
    InputVector vector = {};
    if (is_inside(position + 1)) vector.item[0] = first[0];
    if (is_inside(position)) vector.item[1] = first[1];
    return vector;
}

__device__ __forceinline__ void store_items(Output* first, int position, State prefix, const Items& s) {
    OutputVector y;
    y.item[1] = result(prefix);
    y.item[0] = result(combine(prefix, s.item[0]));
    if (is_whole(position)) {
        *reinterpret_cast<OutputVector*>(first) = y;
        return;
    }
    if (is_inside(position + 1)) first[0] = y.item[0];
    if (is_inside(position)) first[1] = y.item[1];
}

// Items before the row's first are ignored.
__device__ __forceinline__ void begin_row(Items& s, int position) {
    if (position < 0) s.item[0] = identity();
    if (position < -1) s.item[1] = identity();
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[1]);
    s.item[1] = element(x.item[0]);
    return s;
}

// Inclusive scan of the items in place; returns their total, with the compensation added.
__device__ __forceinline__ State scan_items(Items& s) {
    Value lost = 0;
    lost = lose(lost, s.item[0], s.item[1]);
    s.item[1] = combine(s.item[0], s.item[1]);
    return s.item[1] = regain(s.item[1], lost);
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
scan_kernel(const Input* input, Output* output, Board board) {
    __shared__ State warp_total[16];
    __shared__ State group_total[16];
    __shared__ unsigned long long ticket;

    // ---- claim tiles in ticket order, so that preceding tiles are resident and make progress
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) ticket = take_ticket(board);
    __syncthreads();
    if (threadIdx.x == 0) pass_on(board, ticket, gridDim.x - 1);
    const unsigned launch = launch_of(ticket);
    const long long tile = (unsigned)ticket;
    const long long line = tile / 123;
    const int index = (int)(tile % 123);  // index of the tile in its row
    const int lead = (int)(-((line + 1) * 1000003) & 15);  // items between a boundary and the row's first
    const int first = index * 8192 + warp * 512 + lane * 2 - lead;  // the scan position of this thread's first item
    const Input* x = input + line * 1000003 + (1000001 - first);
    Output* y = output + line * 1000003 + (1000001 - first);

    // ---- load 8 x 2 items a thread
    InputVector x7 = load_input(x - 448, first + 448);
    InputVector x6 = load_input(x - 384, first + 384);
    InputVector x5 = load_input(x - 320, first + 320);
    InputVector x4 = load_input(x - 256, first + 256);
    InputVector x3 = load_input(x - 192, first + 192);
    InputVector x2 = load_input(x - 128, first + 128);
    InputVector x1 = load_input(x - 64, first + 64);
    InputVector x0 = load_input(x, first);
    Items s0 = lift_items(x0);
    Items s1 = lift_items(x1);
    Items s2 = lift_items(x2);
    Items s3 = lift_items(x3);
    Items s4 = lift_items(x4);
    Items s5 = lift_items(x5);
    Items s6 = lift_items(x6);
    Items s7 = lift_items(x7);
    begin_row(s0, first);

    // ---- scan each access in its thread, then across the lanes of the warp
    const State t0 = scan_lanes(scan_items(s0), lane);
    const State t1 = scan_lanes(scan_items(s1), lane);
    const State t2 = scan_lanes(scan_items(s2), lane);
    const State t3 = scan_lanes(scan_items(s3), lane);
    const State t4 = scan_lanes(scan_items(s4), lane);
    const State t5 = scan_lanes(scan_items(s5), lane);
    const State t6 = scan_lanes(scan_items(s6), lane);
    const State t7 = scan_lanes(scan_items(s7), lane);
    State before = identity();
    const State p0 = chain_lanes(before, t0, lane);
    const State p1 = chain_lanes(before, t1, lane);
    const State p2 = chain_lanes(before, t2, lane);
    const State p3 = chain_lanes(before, t3, lane);
    const State p4 = chain_lanes(before, t4, lane);
    const State p5 = chain_lanes(before, t5, lane);
    const State p6 = chain_lanes(before, t6, lane);
    const State p7 = chain_lanes(before, t7, lane);

    // ---- combine the totals of the warps and publish the tile's total
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes(lane < 16 ? warp_total[lane] : identity(), lane);
    const State warps = warps_before(totals, warp);
    if (threadIdx.x == 15) publish(board, launch, tile, totals);

    // ---- look-back: fold preceding totals in groups of 32, in a fixed order; each warp waits for one group
    State base = identity();
    for (int group = 0; group * 32 < index; group += 16) {
        const int peer = (group + warp) * 32 + lane;
        State ahead = identity();
        if (peer < index) ahead = await(board, launch, line * 123 + peer, peek(board, line * 123 + peer));
        ahead = scan_lanes(ahead, lane);
        __syncthreads();
        if (lane == 31) group_total[warp] = ahead;
        __syncthreads();
        for (int w = 0; w < 16 && (group + w) * 32 < index; ++w) base = combine(base, group_total[w]);
    }
    const State prefix = combine(base, warps);

    // ---- store
    store_items(y - 448, first + 448, combine(prefix, p7), s7);
    store_items(y - 384, first + 384, combine(prefix, p6), s6);
    store_items(y - 320, first + 320, combine(prefix, p5), s5);
    store_items(y - 256, first + 256, combine(prefix, p4), s4);
    store_items(y - 192, first + 192, combine(prefix, p3), s3);
    store_items(y - 128, first + 128, combine(prefix, p2), s2);
    store_items(y - 64, first + 64, combine(prefix, p1), s1);
    store_items(y, first, combine(prefix, p0), s0);
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
extern "C" long long scanops_workspace_bytes(long long lines, long long) { return 16 + lines * 123 * 16; }

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = arguments->lines * 123;
    unsigned long long* const workspace = (unsigned long long*)arguments->workspace;
    const Board board = {workspace, workspace + 2};
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, board));
}
#endif
