// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n32768-inner32768
//          32768 float32 items of stride 32768, float32 out
// plan     panel_wave: threads 512, items 6, tiles 171, columns 64, vector 4, apart False, stages 4, blocks 1, abreast 256, group 16, stretch 1, ahead 2
//          columns of 32768: tiles of all panels are walked by all blocks in order
// target   sm_90
// content  sha256 1b2049c65758071a of everything below this banner
// again    scanops generate sum-f32-n32768-inner32768 --target sm_90

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

// Shared memory whose size the launch sets: more than the 48 KB a declaration may ask for.
#define dynamic_shared(Layout, name)                                      \
    extern __shared__ __align__(16) unsigned char name##_bytes[];         \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)

// Copies from global to shared memory that pass no register and that nothing waits for until it asks.
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

// Waits until at most `groups` of this thread's newest groups of copies are still under way.
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// As copy_async_16, past the first cache.
__device__ __forceinline__ void copy_stream_16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
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

// ---- 4 columns of a row, as one access reads or writes them; and 6 rows of them
struct alignas(16) InputVector {
    Input column[4];
};
struct InputRows {
    InputVector row[6];
};
struct alignas(16) OutputVector {
    Output column[4];
};
struct alignas(16) States {  // one of each column
    State column[4];
};
struct Items {
    States row[6];
};
struct Ring {  // tiles on their way, by stage, row and thread: a thread reads back what it copied itself, so no barrier is needed
    InputVector x[4][6][512];
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

__device__ __forceinline__ InputRows load_input(const InputVector* slot) {
    InputRows rows;
    rows.row[0] = slot[0];
    rows.row[1] = slot[512];
    rows.row[2] = slot[1024];
    rows.row[3] = slot[1536];
    rows.row[4] = slot[2048];
    rows.row[5] = slot[2560];
    return rows;
}

__device__ __forceinline__ void copy_input(InputVector* slot, const Input* first, long long step, int live) {
    if (live > 0) copy_stream_16(slot, first);
    if (live > 1) copy_stream_16(slot + 512, first + 1 * step);
    if (live > 2) copy_stream_16(slot + 1024, first + 2 * step);
    if (live > 3) copy_stream_16(slot + 1536, first + 3 * step);
    if (live > 4) copy_stream_16(slot + 2048, first + 4 * step);
    if (live > 5) copy_stream_16(slot + 2560, first + 5 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    y.column[2] = result(s.column[2]);
    y.column[3] = result(s.column[3]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, int live, const States& prefix, const Items& s) {
    if (live > 0) *reinterpret_cast<OutputVector*>(first) = results(combine_each(prefix, s.row[0]));
    if (live > 1) *reinterpret_cast<OutputVector*>(first + 1 * step) = results(combine_each(prefix, s.row[1]));
    if (live > 2) *reinterpret_cast<OutputVector*>(first + 2 * step) = results(combine_each(prefix, s.row[2]));
    if (live > 3) *reinterpret_cast<OutputVector*>(first + 3 * step) = results(combine_each(prefix, s.row[3]));
    if (live > 4) *reinterpret_cast<OutputVector*>(first + 4 * step) = results(combine_each(prefix, s.row[4]));
    if (live > 5) *reinterpret_cast<OutputVector*>(first + 5 * step) = results(combine_each(prefix, s.row[5]));
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
    return s;
}

// Inclusive scan of the rows in place; returns their totals.
__device__ __forceinline__ States scan_items(Items& s) {
    s.row[1] = combine_each(s.row[0], s.row[1]);
    s.row[2] = combine_each(s.row[1], s.row[2]);
    s.row[3] = combine_each(s.row[2], s.row[3]);
    s.row[4] = combine_each(s.row[3], s.row[4]);
    s.row[5] = combine_each(s.row[4], s.row[5]);
    return s.row[5];
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

// Inclusive scan across lanes, 3 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_up(s, 4);
    if (lane >= 4) s = combine(older, s);
    older = shuffle_up(s, 8);
    if (lane >= 8) s = combine(older, s);
    older = shuffle_up(s, 16);
    if (lane >= 16) s = combine(older, s);
    return s;
}

// ---- what blocks tell each other. A word is written and read whole, so what it holds is there when its flag is, and no
// fence is needed. The flag is the number of the launch: words of earlier launches count for nothing, nobody clears them.
struct Board {
    unsigned long long* tickets;  // launches that have finished, above the tickets taken in this one
    unsigned long long* word;     // 1 a tile: the launch, above the tile's total
};

struct Words {
    unsigned long long piece[1];
};

__device__ __forceinline__ unsigned long long take_ticket(const Board& board) { return atomicAdd(board.tickets, 1ull); }

// Whoever took the last ticket of a launch opens the next one.
__device__ __forceinline__ void pass_on(const Board& board, unsigned long long ticket, unsigned last) {
    if ((unsigned)ticket == last) store_relaxed(board.tickets, ((ticket >> 32) + 1) << 32);
}

__device__ __forceinline__ unsigned launch_of(unsigned long long ticket) { return (unsigned)(ticket >> 32) + 1; }

__device__ __forceinline__ void publish(const Board& board, unsigned launch, long long tile, State total) {
    unsigned piece[1];
    memcpy(piece, &total, sizeof(State));
    store_relaxed(board.word + tile, (unsigned long long)launch << 32 | piece[0]);
}

__device__ __forceinline__ Words peek(const Board& board, long long tile) {
    Words words;
    words.piece[0] = load_relaxed(board.word + tile);
    return words;
}

// The total of a tile, once its words are those of this launch.
__device__ __forceinline__ State await(const Board& board, unsigned launch, long long tile, Words words) {
    while (words.piece[0] >> 32 != launch) words = peek(board, tile);
    const unsigned piece[1] = {(unsigned)words.piece[0]};
    State total;
    memcpy(&total, piece, sizeof(State));
    return total;
}

struct Claim {
    int number;  // of the tile, in the order of claims
    unsigned panel;
    int index;  // of the tile in its panel
};

struct Tile {  // scanned as far as it goes without what precedes it
    Claim claim;
    States prefix;  // what precedes this thread's rows in the tile
    State total;    // of a column, in the last of the lanes that share it
};

// Tiles are claimed side by side through up to 256 panels, then those below them.
__device__ __forceinline__ Claim claim_of(unsigned number, unsigned tiles, unsigned panels) {
    if (number >= tiles) return {(int)number, 0, 0};
    const unsigned first_panel = number / 43776 * 256;
    const unsigned abreast = min(panels - first_panel, 256u);
    const unsigned inside = number % 43776;
    return {(int)number, first_panel + inside % abreast, (int)(inside / abreast)};
}

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, Output* output, long long lines, Board board) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[2][16][17];  // by the parity of the step; later what precedes the warp
    __shared__ States above[16];  // of the current tile: what precedes it
    __shared__ unsigned long long ticket[2];  // by the parity of the step

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 16;  // of this thread's columns among those of the panel
    const int column_of_lane = warp * 4 + lane % 4;  // for which this lane collects, with others
    const int part = lane / 4;  // of what they share
    const unsigned panels = (unsigned)(lines / 32768) * 512;
    const unsigned tiles = panels * 171;
    const auto on_board = [&](const Claim& claim) { return (long long)claim.panel * 182 * 64 + column_of_lane; };
    const auto load_tile = [&](unsigned stage, const Claim& claim) {
        if ((unsigned)claim.number < tiles) {
            const long long outer = claim.panel / 512;
            const long long column = (long long)(claim.panel % 512) * 64 + place * 4;
            const int first = (int)claim.index * 192 + (int)(threadIdx.x / 16) * 6;  // the scan position of this thread's first row
            const int live = 32768 - first;  // rows from here to the end of the column
            const Input* x = input + (outer * 32768 + first) * 32768 + column;
            copy_input(&ring.x[stage][0][threadIdx.x], x, 32768, live);
        }
        copy_async_commit();
    };

    // ---- claim and load the first tiles
    if (threadIdx.x == 0) ticket[0] = atomicAdd(board.tickets, 2ull);
    __syncthreads();
    const unsigned launch = launch_of(ticket[0]);
    Claim loaded0 = claim_of((unsigned)ticket[0], tiles, panels), loaded1 = claim_of((unsigned)ticket[0] + 1, tiles, panels);  // in the ring, not scanned yet
    load_tile(0, loaded0);
    load_tile(1, loaded1);
    unsigned long long taken = threadIdx.x == 0 ? take_ticket(board) : 0;  // a step before it is needed
    __syncthreads();

    Tile tile0, tile1, tile2;  // tile k is stored k steps on
    tile0.claim = tile1.claim = {-1, 0, 0};
    State fold = identity();  // the tiles above the current one in its group

    for (int step = -2; tile0.claim.number < (int)tiles; ++step) {
        const unsigned parity = step & 1;
        if (threadIdx.x == 0) {
            ticket[parity] = taken;
            taken = take_ticket(board);
        }

        // ---- look at the totals that this step needs: they arrive while it scans
        Words tile_words[2] = {};
        Words stretch_words = {};
        {
            const int stretch = tile0.claim.index / 16;
            if (stretch > 0 && part == 7) stretch_words = peek(board, on_board(tile0.claim) + (171 + stretch - 1) * 64LL);
            {
                const int own = tile1.claim.index;
                const int from = own / 16 * 16 + part * 2;
                const long long at = on_board(tile1.claim) + (from) * 64LL;
                if (from < own) tile_words[0] = peek(board, at);
                if (from + 1 < own) tile_words[1] = peek(board, at + 64);
            }
        }

        // ---- scan the tile that is stored 2 step(s) on, as far as it goes without what precedes it
        copy_async_wait<1>();
        tile2.claim = loaded0;
        const unsigned arrived = (unsigned)(step + 2) % 4;
        Items scanned = lift_items(load_input(&ring.x[arrived][0][threadIdx.x]));  // again below: shared memory holds them meanwhile
        const States run = scan_items(scanned);
        const States inclusive = scan_slots(run, lane);
        const States older = shuffle_up_each(inclusive, 16);
        const States inside = lane >= 16 ? older : identities();
        if (lane >= 16) warp_total[parity][warp][place] = inclusive;
        __syncthreads();

        // ---- lanes that share a column: always in the same order
        {
            // what precedes each warp in the scanned tile, and the tile's total
            State warp0 = warp_total[parity][part * 2][column_of_lane / 4].column[column_of_lane % 4];
            State warp1 = warp_total[parity][part * 2 + 1][column_of_lane / 4].column[column_of_lane % 4];
            tile2.total = scan_lanes(combine(warp0, warp1), lane);
            if (part == 7 && (unsigned)tile2.claim.number < tiles) publish(board, launch, on_board(tile2.claim) + tile2.claim.index * 64LL, tile2.total);
            State before = shuffle_up(tile2.total, 4);
            if (part == 0) before = identity();
            warp_total[parity][part * 2][column_of_lane / 4].column[column_of_lane % 4] = before;
            before = combine(before, warp0);
            warp_total[parity][part * 2 + 1][column_of_lane / 4].column[column_of_lane % 4] = before;

            // what precedes the current tile
            before = identity();
            const int stretch = tile0.claim.index / 16;
            if (stretch > 0 && part == 7) before = await(board, launch, on_board(tile0.claim) + (171 + stretch - 1) * 64LL, stretch_words);
            before = combine(before, fold);
            if (part == 7 && tile0.claim.number >= 0 && tile0.claim.index % 16 == 15) publish(board, launch, on_board(tile0.claim) + (171 + stretch) * 64LL, combine(before, tile0.total));
            if (part == 7) above[column_of_lane / 4].column[column_of_lane % 4] = before;
            // the tiles above the next tile in its group
            fold = identity();
            {
                const int own = tile1.claim.index;
                const int from = own / 16 * 16 + part * 2;
                const long long at = on_board(tile1.claim) + (from) * 64LL;
                if (from < own) fold = combine(fold, await(board, launch, at, tile_words[0]));
                if (from + 1 < own) fold = combine(fold, await(board, launch, at + 64, tile_words[1]));
                fold = scan_lanes(fold, lane);
            }
        }
        __syncthreads();
        tile2.prefix = combine_each(warp_total[parity][warp][place], inside);

        // ---- read the current tile out of the ring, and load the one that takes its place ahead of any store
        const unsigned stage = (unsigned)(step + 4) % 4;
        Items s = lift_items(load_input(&ring.x[stage][0][threadIdx.x]));
        scan_items(s);
        loaded0 = loaded1;
        loaded1 = claim_of((unsigned)ticket[parity], tiles, panels);
        load_tile(stage, loaded1);

        // ---- store
        if (tile0.claim.number >= 0) {
            const long long outer = tile0.claim.panel / 512;
            const long long column = (long long)(tile0.claim.panel % 512) * 64 + place * 4;
            const int first = (int)tile0.claim.index * 192 + (int)(threadIdx.x / 16) * 6;  // the scan position of this thread's first row
            const int live = 32768 - first;  // rows from here to the end of the column
            Output* y = output + (outer * 32768 + first) * 32768 + column;
            const States prefix = combine_each(above[place], tile0.prefix);
            store_items(y, 32768, live, prefix, s);
        }

        // ---- turn to the next tile
        tile0 = tile1;
        tile1 = tile2;
    }
    if (threadIdx.x == 0) pass_on(board, taken, tiles + gridDim.x * 5 - 1);  // a block takes 5 more than it has tiles
}

#ifndef __CUDACC_RTC__  // the host's side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    void* output;
    void* workspace;
    long long lines;   // scanned sequences
    long long length;  // of each: for kernels that take it
    int multiprocessors;
};

extern "C" int scanops_abi() { return 2; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// The tickets, then the words of every tile. The caller clears it once and leaves it to the launches of one stream.
extern "C" long long scanops_workspace_bytes(long long lines, long long) { return 16 + lines / 32768 * 512 * 64 * 182 * 8; }

// An error is told once, to the caller: cleared here, it does not surface at somebody else's next call.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long tiles = arguments->lines / 32768 * 512 * 171;
    if (tiles > 2000000000LL) return cudaErrorInvalidConfiguration;
    const long long resident = (long long)arguments->multiprocessors * 1;
    const long long blocks = tiles < resident ? tiles : resident;
    unsigned long long* const workspace = (unsigned long long*)arguments->workspace;
    const Board board = {workspace, workspace + 2};
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 196608;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 196608);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines, board));
}
#endif
