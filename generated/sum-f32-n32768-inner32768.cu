// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n32768-inner32768
//          32768 float32 items of stride 32768, float32 out
// plan     panels: threads 256, items 16, tiles 128, columns 64, vector 4, apart False, stages 0, blocks 2, abreast 256, group 1, stretch 1
//          columns of 32768: their tiles are split over all multiprocessors
// target   sm_90
// content  sha256 fa0f41b341bca312 of everything below this banner
// again    scanops generate sum-f32-n32768-inner32768 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
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

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 columns of a row, as one access reads or writes them; and 16 rows of them
struct alignas(16) InputVector {
    Input column[4];
};
struct InputRows {
    InputVector row[16];
};
struct alignas(16) OutputVector {
    Output column[4];
};
struct alignas(16) States {  // one per column
    State column[4];
};
struct Items {
    States row[16];
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    s.column[1] = identity();
    s.column[2] = identity();
    s.column[3] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    s.column[1] = combine(older.column[1], newer.column[1]);
    s.column[2] = combine(older.column[2], newer.column[2]);
    s.column[3] = combine(older.column[3], newer.column[3]);
    return s;
}

__device__ __forceinline__ InputRows load_input(const Input* first, long long step) {
    InputRows rows;
    rows.row[0] = *reinterpret_cast<const InputVector*>(first);
    rows.row[1] = *reinterpret_cast<const InputVector*>(first + 1 * step);
    rows.row[2] = *reinterpret_cast<const InputVector*>(first + 2 * step);
    rows.row[3] = *reinterpret_cast<const InputVector*>(first + 3 * step);
    rows.row[4] = *reinterpret_cast<const InputVector*>(first + 4 * step);
    rows.row[5] = *reinterpret_cast<const InputVector*>(first + 5 * step);
    rows.row[6] = *reinterpret_cast<const InputVector*>(first + 6 * step);
    rows.row[7] = *reinterpret_cast<const InputVector*>(first + 7 * step);
    rows.row[8] = *reinterpret_cast<const InputVector*>(first + 8 * step);
    rows.row[9] = *reinterpret_cast<const InputVector*>(first + 9 * step);
    rows.row[10] = *reinterpret_cast<const InputVector*>(first + 10 * step);
    rows.row[11] = *reinterpret_cast<const InputVector*>(first + 11 * step);
    rows.row[12] = *reinterpret_cast<const InputVector*>(first + 12 * step);
    rows.row[13] = *reinterpret_cast<const InputVector*>(first + 13 * step);
    rows.row[14] = *reinterpret_cast<const InputVector*>(first + 14 * step);
    rows.row[15] = *reinterpret_cast<const InputVector*>(first + 15 * step);
    return rows;
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    y.column[2] = result(s.column[2]);
    y.column[3] = result(s.column[3]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, const States& prefix, const Items& s) {
    *reinterpret_cast<OutputVector*>(first) = results(combine_each(prefix, s.row[0]));
    *reinterpret_cast<OutputVector*>(first + 1 * step) = results(combine_each(prefix, s.row[1]));
    *reinterpret_cast<OutputVector*>(first + 2 * step) = results(combine_each(prefix, s.row[2]));
    *reinterpret_cast<OutputVector*>(first + 3 * step) = results(combine_each(prefix, s.row[3]));
    *reinterpret_cast<OutputVector*>(first + 4 * step) = results(combine_each(prefix, s.row[4]));
    *reinterpret_cast<OutputVector*>(first + 5 * step) = results(combine_each(prefix, s.row[5]));
    *reinterpret_cast<OutputVector*>(first + 6 * step) = results(combine_each(prefix, s.row[6]));
    *reinterpret_cast<OutputVector*>(first + 7 * step) = results(combine_each(prefix, s.row[7]));
    *reinterpret_cast<OutputVector*>(first + 8 * step) = results(combine_each(prefix, s.row[8]));
    *reinterpret_cast<OutputVector*>(first + 9 * step) = results(combine_each(prefix, s.row[9]));
    *reinterpret_cast<OutputVector*>(first + 10 * step) = results(combine_each(prefix, s.row[10]));
    *reinterpret_cast<OutputVector*>(first + 11 * step) = results(combine_each(prefix, s.row[11]));
    *reinterpret_cast<OutputVector*>(first + 12 * step) = results(combine_each(prefix, s.row[12]));
    *reinterpret_cast<OutputVector*>(first + 13 * step) = results(combine_each(prefix, s.row[13]));
    *reinterpret_cast<OutputVector*>(first + 14 * step) = results(combine_each(prefix, s.row[14]));
    *reinterpret_cast<OutputVector*>(first + 15 * step) = results(combine_each(prefix, s.row[15]));
}

__device__ __forceinline__ States lift_row(const InputVector& x) {
    States s;
    s.column[0] = element(x.column[0]);
    s.column[1] = element(x.column[1]);
    s.column[2] = element(x.column[2]);
    s.column[3] = element(x.column[3]);
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
    return s;
}

// Inclusive scan of the rows in place; returns their totals.
__device__ __forceinline__ States scan_items(Items& s) {
    s.row[1] = combine_each(s.row[0], s.row[1]);
    s.row[2] = combine_each(s.row[1], s.row[2]);
    s.row[3] = combine_each(s.row[2], s.row[3]);
    s.row[4] = combine_each(s.row[3], s.row[4]);
    s.row[5] = combine_each(s.row[4], s.row[5]);
    s.row[6] = combine_each(s.row[5], s.row[6]);
    s.row[7] = combine_each(s.row[6], s.row[7]);
    s.row[8] = combine_each(s.row[7], s.row[8]);
    s.row[9] = combine_each(s.row[8], s.row[9]);
    s.row[10] = combine_each(s.row[9], s.row[10]);
    s.row[11] = combine_each(s.row[10], s.row[11]);
    s.row[12] = combine_each(s.row[11], s.row[12]);
    s.row[13] = combine_each(s.row[12], s.row[13]);
    s.row[14] = combine_each(s.row[13], s.row[14]);
    s.row[15] = combine_each(s.row[14], s.row[15]);
    return s.row[15];
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
    other.column[2] = shuffle_up(s.column[2], distance);
    other.column[3] = shuffle_up(s.column[3], distance);
    return other;
}

// Inclusive scan across the slots of a warp, 1 steps.
__device__ __forceinline__ States scan_slots(States s, int lane) {
    States older;
    older = shuffle_up_each(s, 16);
    if (lane >= 16) s = combine_each(older, s);
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

// Spin until the tile's status is of this launch, then return the tile's total.
__device__ __forceinline__ State await(const Board& board, unsigned launch, long long tile, Words words) {
    while (is_missing(words, launch)) words = peek(board, tile);
    return total_of(words);
}

__global__ void __launch_bounds__(256, 2)
scan_kernel(const Input* input, Output* output, long long lines, Board board) {
    __shared__ States warp_total[8][16];  // later the warp's exclusive prefix in the tile
    __shared__ States ahead[16];  // the tile's exclusive prefix
    __shared__ unsigned long long ticket;

    // ---- claim a tile: 64 columns, 256 rows; a thread takes 16 of these rows
    const unsigned panels = (unsigned)(lines / 32768) * 512;
    if (threadIdx.x == 0) {
        ticket = take_ticket(board);
        pass_on(board, ticket, panels * 128 - 1);
    }
    __syncthreads();
    const unsigned launch = launch_of(ticket);
    const unsigned first_panel = (unsigned)ticket / 32768 * 256;  // index in its panels whose tiles are claimed together
    const unsigned abreast = min(panels - first_panel, 256u);
    const unsigned panel = first_panel + (unsigned)ticket % 32768 % abreast;
    const int tile = (unsigned)ticket % 32768 / abreast;  // index in its panel
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 16;  // of this thread's columns in the panel
    const long long outer = panel / 512;
    const long long column = (long long)(panel % 512) * 64 + place * 4;
    const int first = (int)tile * 256 + (int)(threadIdx.x / 16) * 16;  // the scan position of this thread's first row

    // ---- load 16 rows, scan them, then across the slots of the warp
    const Input* x = input + (outer * 32768 + first) * 32768 + column;
    const InputRows x0 = load_input(x, 32768);
    Items s = lift_items(x0);
    const States run = scan_items(s);
    const States inclusive = scan_slots(run, lane);
    const States older = shuffle_up_each(inclusive, 16);
    const States inside = lane >= 16 ? older : identities();
    if (lane >= 16) warp_total[warp][place] = inclusive;
    __syncthreads();

    // ---- one thread per column: the exclusive prefix of each warp in the tile
    const long long on_board = (long long)panel * 128 * 64;
    State total = identity();
    if (threadIdx.x < 64) {
        for (int w = 0; w < 8; ++w) {
            State& warps = warp_total[w][threadIdx.x / 4].column[threadIdx.x % 4];
            const State newer = warps;
            warps = total;
            total = combine(total, newer);
        }
    }

    // ---- one lane per column: the inclusive prefix of the tile above
    {
        const int column_of_lane = warp * 8 + lane % 8;
        if (lane / 8 == 3) {
            State before = identity();
            const long long above = on_board + column_of_lane + (tile - 1) * 64LL;
            if (tile > 0) before = await(board, launch, above, peek(board, above));
            ahead[column_of_lane / 4].column[column_of_lane % 4] = before;
        }
    }
    __syncthreads();

    // ---- publish this tile's inclusive prefix
    if (threadIdx.x < 64) {
        publish(board, launch, on_board + tile * 64LL + threadIdx.x, combine(ahead[threadIdx.x / 4].column[threadIdx.x % 4], total));
    }

    // ---- store
    Output* y = output + (outer * 32768 + first) * 32768 + column;
    const States before = combine_each(ahead[place], warp_total[warp][place]);
    const States prefix = combine_each(before, inside);
    store_items(y, 32768, prefix, s);
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
    return 16 + lines / 32768 * 512 * 64 * 128 * 8 * kWords;
}

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = arguments->lines / 32768 * 512 * 128;
    unsigned long long* const workspace = (unsigned long long*)arguments->workspace;
    const Board board = {workspace, workspace + 2};
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines, board));
}
#endif
