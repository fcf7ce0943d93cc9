// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f64-n65536-inner6-exclusive-few
//          65536 float64 items of stride 6, exclusive, few, float64 out
// plan     panels: threads 256, items 17, tiles 61, columns 8, vector 2, apart False, stages 1, blocks 2, abreast 256, group 32, stretch 4
//          columns of 65536: their tiles are split over all multiprocessors
// target   sm_90
// content  sha256 d06502b3abae66ab of everything below this banner
// again    scanops generate prod-f64-n65536-inner6-exclusive-few --target sm_90

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

// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                                      \
    extern __shared__ __align__(16) unsigned char name##_bytes[];         \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)

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

// ---- 2 columns of a row, as one access reads or writes them; and 17 rows of them
struct alignas(16) InputVector {
    Input column[2];
};
struct InputRows {
    InputVector row[17];
};
struct alignas(16) OutputVector {
    Output column[2];
};
struct alignas(16) States {  // one per column
    State column[2];
};
struct Items {
    States row[17];
};
struct Ring {  // multistage ring of tiles, by stage, warp and row: a warp reads what its lanes copied
    InputVector x[1][8][544];
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    s.column[1] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    s.column[1] = combine(older.column[1], newer.column[1]);
    return s;
}

__device__ __forceinline__ States lose_each(const States& lost, const States& older, const States& newer) {
    States s;
    s.column[0] = lose(lost.column[0], older.column[0], newer.column[0]);
    s.column[1] = lose(lost.column[1], older.column[1], newer.column[1]);
    return s;
}

__device__ __forceinline__ States regain_each(const States& totals, const States& lost) {
    States s;
    s.column[0] = regain(totals.column[0], lost.column[0]);
    s.column[1] = regain(totals.column[1], lost.column[1]);
    return s;
}

// A warp's rows in shared memory: in scan order, padded so that lanes access different banks.
__device__ __forceinline__ int access_place(int lane, int row) {
    row += lane / 4;
    return row * 4 + lane % 4;
}

__device__ __forceinline__ int scan_place(int lane) { return lane / 4 * 68 + lane % 4; }

__device__ __forceinline__ InputRows load_input(const InputVector* slot, int lane) {
    InputRows rows;
    slot += scan_place(lane);
    rows.row[0] = slot[0];
    rows.row[1] = slot[4];
    rows.row[2] = slot[8];
    rows.row[3] = slot[12];
    rows.row[4] = slot[16];
    rows.row[5] = slot[20];
    rows.row[6] = slot[24];
    rows.row[7] = slot[28];
    rows.row[8] = slot[32];
    rows.row[9] = slot[36];
    rows.row[10] = slot[40];
    rows.row[11] = slot[44];
    rows.row[12] = slot[48];
    rows.row[13] = slot[52];
    rows.row[14] = slot[56];
    rows.row[15] = slot[60];
    rows.row[16] = slot[64];
    return rows;
}

__device__ __forceinline__ void copy_input(InputVector* slot, int lane, const Input* first, long long step, int live) {
    if (live > 0) copy_async_16(slot + access_place(lane, 0), first);
    if (live > 8) copy_async_16(slot + access_place(lane, 8), first + 8 * step);
    if (live > 16) copy_async_16(slot + access_place(lane, 16), first + 16 * step);
    if (live > 24) copy_async_16(slot + access_place(lane, 24), first + 24 * step);
    if (live > 32) copy_async_16(slot + access_place(lane, 32), first + 32 * step);
    if (live > 40) copy_async_16(slot + access_place(lane, 40), first + 40 * step);
    if (live > 48) copy_async_16(slot + access_place(lane, 48), first + 48 * step);
    if (live > 56) copy_async_16(slot + access_place(lane, 56), first + 56 * step);
    if (live > 64) copy_async_16(slot + access_place(lane, 64), first + 64 * step);
    if (live > 72) copy_async_16(slot + access_place(lane, 72), first + 72 * step);
    if (live > 80) copy_async_16(slot + access_place(lane, 80), first + 80 * step);
    if (live > 88) copy_async_16(slot + access_place(lane, 88), first + 88 * step);
    if (live > 96) copy_async_16(slot + access_place(lane, 96), first + 96 * step);
    if (live > 104) copy_async_16(slot + access_place(lane, 104), first + 104 * step);
    if (live > 112) copy_async_16(slot + access_place(lane, 112), first + 112 * step);
    if (live > 120) copy_async_16(slot + access_place(lane, 120), first + 120 * step);
    if (live > 128) copy_async_16(slot + access_place(lane, 128), first + 128 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    return y;
}

__device__ __forceinline__ void store_items(InputVector* slot, int lane, Output* first, long long step, int live, const States& prefix, const Items& s) {
    OutputVector* const y = reinterpret_cast<OutputVector*>(slot);
    OutputVector* const own = y + scan_place(lane);
    own[0] = results(prefix);
    own[4] = results(combine_each(prefix, s.row[0]));
    own[8] = results(combine_each(prefix, s.row[1]));
    own[12] = results(combine_each(prefix, s.row[2]));
    own[16] = results(combine_each(prefix, s.row[3]));
    own[20] = results(combine_each(prefix, s.row[4]));
    own[24] = results(combine_each(prefix, s.row[5]));
    own[28] = results(combine_each(prefix, s.row[6]));
    own[32] = results(combine_each(prefix, s.row[7]));
    own[36] = results(combine_each(prefix, s.row[8]));
    own[40] = results(combine_each(prefix, s.row[9]));
    own[44] = results(combine_each(prefix, s.row[10]));
    own[48] = results(combine_each(prefix, s.row[11]));
    own[52] = results(combine_each(prefix, s.row[12]));
    own[56] = results(combine_each(prefix, s.row[13]));
    own[60] = results(combine_each(prefix, s.row[14]));
    own[64] = results(combine_each(prefix, s.row[15]));
    __syncwarp();
    if (live > 0) *reinterpret_cast<OutputVector*>(first) = y[access_place(lane, 0)];
    if (live > 8) *reinterpret_cast<OutputVector*>(first + 8 * step) = y[access_place(lane, 8)];
    if (live > 16) *reinterpret_cast<OutputVector*>(first + 16 * step) = y[access_place(lane, 16)];
    if (live > 24) *reinterpret_cast<OutputVector*>(first + 24 * step) = y[access_place(lane, 24)];
    if (live > 32) *reinterpret_cast<OutputVector*>(first + 32 * step) = y[access_place(lane, 32)];
    if (live > 40) *reinterpret_cast<OutputVector*>(first + 40 * step) = y[access_place(lane, 40)];
    if (live > 48) *reinterpret_cast<OutputVector*>(first + 48 * step) = y[access_place(lane, 48)];
    if (live > 56) *reinterpret_cast<OutputVector*>(first + 56 * step) = y[access_place(lane, 56)];
    if (live > 64) *reinterpret_cast<OutputVector*>(first + 64 * step) = y[access_place(lane, 64)];
    if (live > 72) *reinterpret_cast<OutputVector*>(first + 72 * step) = y[access_place(lane, 72)];
    if (live > 80) *reinterpret_cast<OutputVector*>(first + 80 * step) = y[access_place(lane, 80)];
    if (live > 88) *reinterpret_cast<OutputVector*>(first + 88 * step) = y[access_place(lane, 88)];
    if (live > 96) *reinterpret_cast<OutputVector*>(first + 96 * step) = y[access_place(lane, 96)];
    if (live > 104) *reinterpret_cast<OutputVector*>(first + 104 * step) = y[access_place(lane, 104)];
    if (live > 112) *reinterpret_cast<OutputVector*>(first + 112 * step) = y[access_place(lane, 112)];
    if (live > 120) *reinterpret_cast<OutputVector*>(first + 120 * step) = y[access_place(lane, 120)];
    if (live > 128) *reinterpret_cast<OutputVector*>(first + 128 * step) = y[access_place(lane, 128)];
}

__device__ __forceinline__ States lift_row(const InputVector& x) {
    States s;
    s.column[0] = element(x.column[0]);
    s.column[1] = element(x.column[1]);
    return s;
}

__device__ __forceinline__ Items lift_items(const InputRows& x) {
    Items s;
    s.row[0] = lift_row(x.row[0]);
    s.row[1] = lift_row(x.row[1]);
    s.row[2] = lift_row(x.row[2]);
    s.row[3] = lift_row(x.row[3]);
    s.row[4] = lift_row(x.row[4]);
    s.row[5] = lift_row(x.row[5]);
    s.row[6] = lift_row(x.row[6]);
    s.row[7] = lift_row(x.row[7]);
    s.row[8] = lift_row(x.row[8]);
    s.row[9] = lift_row(x.row[9]);
    s.row[10] = lift_row(x.row[10]);
    s.row[11] = lift_row(x.row[11]);
    s.row[12] = lift_row(x.row[12]);
    s.row[13] = lift_row(x.row[13]);
    s.row[14] = lift_row(x.row[14]);
    s.row[15] = lift_row(x.row[15]);
    s.row[16] = lift_row(x.row[16]);
    return s;
}

// Inclusive scan of the rows in place; returns their totals, with the compensation added.
__device__ __forceinline__ States scan_items(Items& s) {
    States lost = {};
    lost = lose_each(lost, s.row[0], s.row[1]);
    s.row[1] = combine_each(s.row[0], s.row[1]);
    lost = lose_each(lost, s.row[1], s.row[2]);
    s.row[2] = combine_each(s.row[1], s.row[2]);
    lost = lose_each(lost, s.row[2], s.row[3]);
    s.row[3] = combine_each(s.row[2], s.row[3]);
    lost = lose_each(lost, s.row[3], s.row[4]);
    s.row[4] = combine_each(s.row[3], s.row[4]);
    lost = lose_each(lost, s.row[4], s.row[5]);
    s.row[5] = combine_each(s.row[4], s.row[5]);
    lost = lose_each(lost, s.row[5], s.row[6]);
    s.row[6] = combine_each(s.row[5], s.row[6]);
    lost = lose_each(lost, s.row[6], s.row[7]);
    s.row[7] = combine_each(s.row[6], s.row[7]);
    lost = lose_each(lost, s.row[7], s.row[8]);
    s.row[8] = combine_each(s.row[7], s.row[8]);
    lost = lose_each(lost, s.row[8], s.row[9]);
    s.row[9] = combine_each(s.row[8], s.row[9]);
    lost = lose_each(lost, s.row[9], s.row[10]);
    s.row[10] = combine_each(s.row[9], s.row[10]);
    lost = lose_each(lost, s.row[10], s.row[11]);
    s.row[11] = combine_each(s.row[10], s.row[11]);
    lost = lose_each(lost, s.row[11], s.row[12]);
    s.row[12] = combine_each(s.row[11], s.row[12]);
    lost = lose_each(lost, s.row[12], s.row[13]);
    s.row[13] = combine_each(s.row[12], s.row[13]);
    lost = lose_each(lost, s.row[13], s.row[14]);
    s.row[14] = combine_each(s.row[13], s.row[14]);
    lost = lose_each(lost, s.row[14], s.row[15]);
    s.row[15] = combine_each(s.row[14], s.row[15]);
    lost = lose_each(lost, s.row[15], s.row[16]);
    s.row[16] = combine_each(s.row[15], s.row[16]);
    return s.row[16] = regain_each(s.row[16], lost);
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
}

__device__ __forceinline__ States shuffle_up_each(const States& s, int distance) {
    States other;
    other.column[0] = shuffle_up(s.column[0], distance);
    other.column[1] = shuffle_up(s.column[1], distance);
    return other;
}

// Inclusive scan across the slots of a warp, 3 steps.
__device__ __forceinline__ States scan_slots(States s, int lane) {
    States older;
    older = shuffle_up_each(s, 4);
    if (lane >= 4) s = combine_each(older, s);
    older = shuffle_up_each(s, 8);
    if (lane >= 8) s = combine_each(older, s);
    older = shuffle_up_each(s, 16);
    if (lane >= 16) s = combine_each(older, s);
    return s;
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

// ---- tile status for decoupled look-back: value and launch epoch in one 64-bit word, accessed as a whole, so no fence is
// needed. A word of an earlier launch is invalid by its epoch, so nothing needs to be cleared between launches.
constexpr int kWords = sizeof(State) / sizeof(unsigned);  // status words of a tile
static_assert(sizeof(State) % sizeof(unsigned) == 0, "a state is published in whole words");

struct Board {
    unsigned long long* tickets;  // finished launches (high half), tickets taken in this one (low half)
    unsigned long long* word;     // kWords per tile: launch epoch (high half), a piece of the tile's total (low half)
};

struct Words {
    unsigned long long piece[kWords];
};

__device__ __forceinline__ unsigned long long take_ticket(const Board& board) { return atomicAdd(board.tickets, 1ull); }

// The block with the last ticket of a launch advances the epoch for the next one.
__device__ __forceinline__ void pass_on(const Board& board, unsigned long long ticket, unsigned last) {
    if ((unsigned)ticket == last) store_relaxed(board.tickets, ((ticket >> 32) + 1) << 32);
}

__device__ __forceinline__ unsigned launch_of(unsigned long long ticket) { return (unsigned)(ticket >> 32) + 1; }

__device__ __forceinline__ void publish(const Board& board, unsigned launch, long long tile, State total) {
    unsigned piece[kWords];
    memcpy(piece, &total, sizeof(State));
#pragma unroll
    for (int k = 0; k < kWords; ++k)
        store_relaxed(board.word + tile * kWords + k, (unsigned long long)launch << 32 | piece[k]);
}

__device__ __forceinline__ Words peek(const Board& board, long long tile) {
    Words words;
#pragma unroll
    for (int k = 0; k < kWords; ++k) words.piece[k] = load_relaxed(board.word + tile * kWords + k);
    return words;
}

__device__ __forceinline__ bool is_missing(const Words& words, unsigned launch) {
    bool missing = false;
#pragma unroll
    for (int k = 0; k < kWords; ++k) missing = missing || words.piece[k] >> 32 != launch;
    return missing;
}

__device__ __forceinline__ State total_of(const Words& words) {
    unsigned piece[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) piece[k] = (unsigned)words.piece[k];
    State total;
    memcpy(&total, piece, sizeof(State));
    return total;
}

__global__ void __launch_bounds__(256, 2)
scan_kernel(const Input* input, Output* output, long long lines, Board board) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[8][4];  // later the warp's exclusive prefix in the tile
    __shared__ States ahead[4];  // the tile's exclusive prefix
    __shared__ unsigned long long ticket;

    // ---- claim a tile: 8 columns, 1088 rows; a thread takes 17 of these rows
    const unsigned panels = (unsigned)(lines / 6) * 1;
    if (threadIdx.x == 0) {
        ticket = take_ticket(board);
        pass_on(board, ticket, panels * 61 - 1);
    }
    __syncthreads();
    const unsigned launch = launch_of(ticket);
    const unsigned first_panel = (unsigned)ticket / 15616 * 256;  // index in its panels whose tiles are claimed together
    const unsigned abreast = min(panels - first_panel, 256u);
    const unsigned panel = first_panel + (unsigned)ticket % 15616 % abreast;
    const int tile = (unsigned)ticket % 15616 / abreast;  // index in its panel
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 4;  // of this thread's columns in the panel
    const long long outer = panel;
    const long long column = place * 2;
    const int first = (int)tile * 1088 + warp * 136 + lane / 4;  // the scan position of this thread's first access
    const int live = column < 6 ? 65536 - first : 0;  // rows from here to the end of the column

    // ---- load 17 rows, scan them, then across the slots of the warp
    const Input* x = input + (outer * 65536 + first) * 6 + column;
    copy_input(ring.x[0][warp], lane, x, 6, live);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    Items copied = lift_items(load_input(ring.x[0][warp], lane));  // lifted again below: shared memory holds them meanwhile, not registers
    const States run = scan_items(copied);
    const States inclusive = scan_slots(run, lane);
    const States older = shuffle_up_each(inclusive, 4);
    const States inside = lane >= 4 ? older : identities();
    if (lane >= 28) warp_total[warp][place] = inclusive;
    __syncthreads();

    // ---- the lanes of a column fold the tile's exclusive prefix in a fixed order
    {
        const int column_of_lane = warp;
        const int part = lane;
        const long long on_board = (long long)panel * 63 * 8 + column_of_lane;
        const int first_tile = tile / 32 * 32 + part;
        const long long tile_place = on_board + first_tile * 8LL;
        const int group = tile / 32;
        const int first_group = group / 4 * 4 + part;
        const long long group_place = on_board + (61 + first_group) * 8LL;
        Words words[2];
        bool waits0 = first_tile < tile;
        bool waits1 = first_group < group;
        const auto look = [&] {  // at all missing words at once: one memory round trip
            if (waits0) words[0] = peek(board, tile_place);
            if (waits1) words[1] = peek(board, group_place);
            waits0 = waits0 && is_missing(words[0], launch);
            waits1 = waits1 && is_missing(words[1], launch);
        };

        // ---- publish the tile's total before looking back: other blocks wait for it
        State total = identity();
        if (part == 31) {
            for (int w = 0; w < 8; ++w) {
                State& warps = warp_total[w][column_of_lane / 2].column[column_of_lane % 2];
                const State newer = warps;
                warps = total;
                total = combine(total, newer);
            }
            publish(board, launch, on_board + tile * 8LL, total);
        }

        // ---- fold the tiles above it in its group
        while (waits0) look();
        State tiles = identity();
        if (first_tile < tile) tiles = combine(tiles, total_of(words[0]));
        tiles = scan_lanes(tiles, lane);
        if (part == 31 && tile % 32 == 31) publish(board, launch, on_board + (61 + group) * 8LL, combine(tiles, total));

        // ---- fold the groups above it, and the groups of groups above those
        while (waits1) look();
        State groups = identity();
        if (first_group < group) groups = combine(groups, total_of(words[1]));
        groups = scan_lanes(groups, lane);
        if (part == 31) {
            State before = identity();
            before = combine(before, groups);
            before = combine(before, tiles);
            ahead[column_of_lane / 2].column[column_of_lane % 2] = before;
        }
    }
    __syncthreads();

    // ---- store
    Output* y = output + (outer * 65536 + first) * 6 + column;
    const States before = combine_each(ahead[place], warp_total[warp][place]);
    const States prefix = combine_each(before, inside);
    Items s = lift_items(load_input(ring.x[0][warp], lane));
    scan_items(s);
    store_items(ring.x[0][warp], lane, y, 6, live, prefix, s);
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
extern "C" long long scanops_workspace_bytes(long long lines, long long) {
    return 16 + lines / 6 * 1 * 8 * 63 * 8 * kWords;
}

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = arguments->lines / 6 * 1 * 61;
    unsigned long long* const workspace = (unsigned long long*)arguments->workspace;
    const Board board = {workspace, workspace + 2};
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 69632;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 69632);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines, board));
}
#endif
