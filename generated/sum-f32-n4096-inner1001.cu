// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n4096-inner1001
//          4096 float32 items of stride 1001, float32 out
// plan     panels: threads 256, items 16, tiles 32, columns 128, vector 4, apart True, stages 0, blocks 2, abreast 256, group 1, stretch 1
//          columns of 4096: their tiles are split over all multiprocessors
// target   sm_90
// content  sha256 1df2b6184a52563b of everything below this banner
// again    scanops generate sum-f32-n4096-inner1001 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: panels
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 4096;  // of a line, in items
constexpr bool kReverse = false;  // scan from a column's end to its start
constexpr int kInner = 1001;  // columns side by side: the stride of the scanned dimension
constexpr int kThreads = 256;  // of a block
constexpr int kBlocks = 2;  // of a multiprocessor, at least
constexpr int kItems = 16;  // rows of a thread in a tile
constexpr int kVector = 4;  // columns of a thread
constexpr int kLanes = 32;  // threads side by side across a panel
constexpr int kPanels = 8;  // side by side across the columns
constexpr bool kApart = true;  // a thread's columns are kLanes apart, and accessed one by one
constexpr bool kRealigns = false;  // rows start off the boundary of an access
constexpr bool kExchanged = false;  // lanes exchange rows in shared memory
constexpr bool kStandsIn = false;  // rows that do not exist read the operand's first access
constexpr int kAbreast = 256;  // panels whose tiles are claimed together
constexpr int kGroup = 1;  // tiles of a group
constexpr int kStretch = 1;  // groups of a group of groups
constexpr bool kHasPeers = false;  // a tile folds the totals of tiles
constexpr bool kHasGroups = false;  // a tile folds the totals of groups
constexpr bool kHasCarry = true;  // inclusive prefixes are chained over groups of groups
static_assert(kThreads % 32 == 0, "blocks of whole warps");

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

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) {
    return lift(x);
}

__device__ __forceinline__ Output result(State state) { return state; }

// ---- a panel: kColumns columns, of which a thread takes kVector; its rows in tiles of kTile
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = kLanes * kVector;
constexpr int kSlots = kThreads / kLanes;  // threads along a column
constexpr int kTile = kSlots * kItems;
constexpr bool kRagged = (long long)kPanels * kColumns != kInner;  // the last panel reaches past the last column
constexpr bool kUneven = length % kTile != 0;  // the last tile is partial
constexpr bool kGuarded = kRagged || kUneven;  // some rows of a tile do not exist
constexpr long long kStep = kReverse ? -kInner : kInner;  // items from one row to the next in scan order
constexpr int kPitch = kApart ? 1 : kVector;              // columns from one thread to the next
constexpr int kSpacing = kApart ? kLanes : 1;             // columns between those of a thread
constexpr int kStride = kExchanged ? 32 / kLanes : 1;     // rows from one access of a thread to its next
static_assert(kThreads % 32 == 0 && 32 % kLanes == 0 && kThreads % kLanes == 0, "whole warps, whole rows");

// ---- rows of neighbouring columns
// The largest power of two that divides a number of bytes, at most the 16 bytes of the widest access.
__device__ __forceinline__ constexpr int alignment_of(int bytes) { return (bytes & -bytes) < 16 ? bytes & -bytes : 16; }

template <typename Item>
struct alignas(alignment_of(kVector * sizeof(Item))) Access {  // a thread's columns of one row, as one access
    Item column[kVector];
};
template <typename Item>
struct Rows {
    Access<Item> row[kItems];
};
struct alignas(alignment_of(kVector * sizeof(State))) States {  // one per column
    State column[kVector];
};
struct Items {
    States row[kItems];
};

// Index in memory of the lowest of `count` positions of a line, from a scan position on.
__device__ __forceinline__ Position index_of(Position position, int count, Position length) {
    return kReverse ? length - count - position : position;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
#pragma unroll
    for (int c = 0; c < kVector; ++c) s.column[c] = combine(older.column[c], newer.column[c]);
    return s;
}

template <typename Item>
struct Source {  // an operand, as a thread reads it
    const Item* first;  // the thread's first row of the next tile to read
    long long step;     // items from one row to the next in scan order
    const Item* begin;  // the operand's first item
};

// Whether row k of a thread exists; `live`: rows from its first to the end of its columns.
__device__ __forceinline__ bool is_live(Position live, int k) { return !kGuarded || live > k; }

template <typename Item>
__device__ __forceinline__ Rows<Item> load_rows(const Source<Item>& x, Position live, int there) {
    Rows<Item> rows = {};
    const Item* from = x.first;
#pragma unroll
    for (int k = 0; k < kItems; ++k, from += x.step) {
        if constexpr (kApart || kRealigns) {
#pragma unroll
            for (int c = 0; c < kVector; ++c)
                if (is_live(live, k) && (!kApart || !kRagged || there > c)) rows.row[k].column[c] = from[c * kSpacing];
        } else if constexpr (kStandsIn) {
            // the operand's first access, for rows that do not exist: ptxas issues unconditional loads together
            rows.row[k] = *reinterpret_cast<const Access<Item>*>(is_live(live, k) ? from : x.begin);
        } else {
            if (is_live(live, k)) rows.row[k] = *reinterpret_cast<const Access<Item>*>(from);
        }
    }
    return rows;
}

template <typename Item>
__device__ __forceinline__ void store_rows(Item* to, const Rows<Item>& y, Position live, int there) {
#pragma unroll
    for (int k = 0; k < kItems; ++k, to += kStride * kStep) {
        if (!is_live(live, k * kStride)) continue;
        if (kApart || (kRealigns && (size_t)to % alignof(Access<Item>) != 0)) {
#pragma unroll
            for (int c = 0; c < kVector; ++c)
                if (!kApart || !kRagged || there > c) to[c * kSpacing] = y.row[k].column[c];
        } else {
            *reinterpret_cast<Access<Item>*>(to) = y.row[k];
        }
    }
}

__device__ __forceinline__ Items lift_items(const Rows<Input>& x) {
    Items s;
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c)
            s.row[k].column[c] = element(x.row[k].column[c]);
    return s;
}

// Inclusive scan of the rows in place; returns their totals.
__device__ __forceinline__ States scan_items(Items& s) {
#pragma unroll
    for (int k = 1; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
            const State older = s.row[k - 1].column[c], newer = s.row[k].column[c];
            s.row[k].column[c] = combine(older, newer);
        }
    States& total = s.row[kItems - 1];
    return total;
}

// Results of the rows, given the states before them.
__device__ __forceinline__ Rows<Output> results(States prefix, const Items& s) {
    Rows<Output> y;
#pragma unroll
    for (int k = 0; k < kItems; ++k)
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
            State& before = prefix.column[c];
            y.row[k].column[c] = result(combine(before, s.row[k].column[c]));
        }
    return y;
}

// ---- tile status for decoupled look-back: value and launch epoch in one 64-bit word, accessed as a whole, so no fence
// is needed. A word of an earlier launch is invalid by its epoch, so nothing needs to be cleared between launches.
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

// ---- look-back: each column's totals are folded by kFoldLanes lanes of one warp
constexpr int kFoldColumns = kColumns > kWarps ? kColumns / kWarps : 1;  // of a warp
constexpr int kFoldWarps = kColumns / kFoldColumns;                      // warps that fold
static_assert(kColumns <= kThreads && kFoldColumns <= 32, "a lane for every column");

// Number of groups of so many tiles, the last of which may be partial.
__host__ __device__ __forceinline__ int groups_of(int tiles, int size) { return (tiles + size - 1) / size; }

// Index of a column's first status of groups of tiles, of groups of groups; and the number of all its statuses.
__host__ __device__ __forceinline__ int group_status(int tiles) { return kHasPeers ? tiles : 0; }

__host__ __device__ __forceinline__ int stretch_status(int tiles) {
    return group_status(tiles) + (kHasGroups ? groups_of(tiles, kGroup) : 0);
}

__host__ __device__ __forceinline__ int statuses_of(int tiles) {
    return stretch_status(tiles) + (kHasCarry ? groups_of(tiles, kGroup * kStretch) : 0);
}

// A panel's column in an array of the states of its threads.
__device__ __forceinline__ State& column_of(States* states, int column) {
    return states[column / kVector].column[column % kVector];
}

// Replace the totals of a column's warps by the exclusive prefix of each; returns the total of the tile.
__device__ __forceinline__ State scan_warp_totals(States (*warp_total)[kLanes], int column) {
    State total = identity();
    for (int w = 0; w < kWarps; ++w) {
        State& warps = column_of(warp_total[w], column);
        const State newer = warps;
        warps = total;
        total = combine(total, newer);
    }
    return total;
}

__global__ void __launch_bounds__(kThreads, kBlocks)
scan_kernel(const Input* input, Output* output, long long lines, Board board) {
    __shared__ States warp_total[kWarps][kLanes];  // later the warp's exclusive prefix in the tile
    __shared__ States ahead[kLanes];  // the tile's exclusive prefix
    __shared__ unsigned long long ticket;

    // ---- claim a tile: those of kAbreast panels are claimed together, row of tiles by row of tiles
    const int tiles_a_line = (int)((length + kTile - 1) / kTile);
    const unsigned panels = (unsigned)(lines / kInner) * kPanels;
    if (threadIdx.x == 0) {
        ticket = take_ticket(board);
        pass_on(board, ticket, panels * tiles_a_line - 1);
    }
    __syncthreads();
    const unsigned launch = launch_of(ticket), claimed = (unsigned)ticket;
    const unsigned together = (unsigned)min((long long)kAbreast * tiles_a_line, 0xffffffffLL);  // tiles of these
    const unsigned first_panel = claimed / together * kAbreast;
    const unsigned abreast = min(panels - first_panel, (unsigned)kAbreast);
    const unsigned panel = first_panel + claimed % together % abreast;
    const int tile = claimed % together / abreast;  // index in its panel
    [[maybe_unused]] const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int place = threadIdx.x % kLanes;  // of this thread's columns in the panel
    const long long outer = panel / kPanels;
    const long long column = panel % kPanels * (long long)kColumns + place * kPitch;
    const int left = kRagged ? (int)min(kInner - column, (long long)kColumns) : kColumns;  // columns from this one on
    const int there = kApart ? (left + kSpacing - 1) / kSpacing : left > 0 ? kVector : 0;  // of this thread
    [[maybe_unused]] const long long line = outer * kInner + column;
    const Position first = (Position)tile * kTile + threadIdx.x / kLanes * kItems;  // scan position of the first row it scans
    const Position live = there > 0 ? length - first : 0;  // rows from there to the end of its columns
    Source<Input> x = {
        input + (outer * length + index_of(first, 1, length)) * kInner + column,
        kStep, input};

    // ---- load and scan the rows of the thread
    const Rows<Input> x_rows = load_rows(x, live, there);
    Items s = lift_items(x_rows);
    const States run = scan_items(s);
    warp_total[warp][place] = run;
    __syncthreads();

    // ---- one thread per column: the exclusive prefix of each warp in the tile
    const long long statuses = (long long)panel * kColumns * statuses_of(tiles_a_line);
    State total = identity();
    if (threadIdx.x < kColumns) total = scan_warp_totals(warp_total, threadIdx.x);

    // ---- one lane per column: the inclusive prefix of the tile above
    if (warp < kFoldWarps && lane >= 32 - kFoldColumns) {
        const int folded = warp * kFoldColumns + lane % kFoldColumns;
        State before = identity();
        if (kHasCarry && tile > 0) {
            const long long above = statuses + (tile - 1LL) * kColumns + folded;
            before = await(board, launch, above, peek(board, above));
        }
        column_of(ahead, folded) = before;
    }
    __syncthreads();

    // ---- publish this tile's inclusive prefix
    if (kHasCarry && threadIdx.x < kColumns) {
        const long long status = statuses + (long long)tile * kColumns + threadIdx.x;
        publish(board, launch, status, combine(column_of(ahead, threadIdx.x), total));
    }

    // ---- store
    Output* y = output + (outer * length + index_of(first, 1, length)) * kInner + column;
    States prefix = combine_each(ahead[place], warp_total[warp][place]);
    store_rows(y, results(prefix, s), live, there);
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

// Tickets, then the status words of every column's tiles. Cleared once by the caller; launches may reuse it.
extern "C" long long scanops_workspace_bytes(long long lines, long long) {
    const int tiles_a_line = (int)((length + kTile - 1) / kTile);
    const long long statuses = lines / kInner * kPanels * kColumns * statuses_of(tiles_a_line);
    return 16 + statuses * 8 * kWords;
}

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long tiles_a_line = (length + kTile - 1) / kTile;
    const long long blocks = arguments->lines / kInner * kPanels * tiles_a_line;
    unsigned long long* const workspace = (unsigned long long*)arguments->workspace;
    const Board board = {workspace, workspace + 2};
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(kThreads);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines, board));
}
#endif
