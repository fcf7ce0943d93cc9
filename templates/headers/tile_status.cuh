//@ Board
// ---- tile status for decoupled look-back: value and launch epoch in one 64-bit word, accessed as a whole, so no fence
// is needed. A word of an earlier launch is invalid by its epoch, so nothing needs to be cleared between launches.
static_assert(sizeof(State) == kWords * sizeof(unsigned), "a state is published in whole words");

struct Board {  // the workspace
    unsigned long long* tickets;  // finished launches (high half), tickets taken in this one (low half)
    unsigned long long* word;     // kWords per tile: launch epoch (high half), a piece of the tile's total (low half)
};

//@ Words
struct Words {
    unsigned long long piece[kWords];
};

//@ take_ticket
__device__ __forceinline__ unsigned long long take_ticket(const Board& board) { return atomicAdd(board.tickets, 1ull); }

//@ pass_on
// The block with the last ticket of a launch advances the epoch for the next one.
__device__ __forceinline__ void pass_on(const Board& board, unsigned long long ticket, unsigned last) {
    if ((unsigned)ticket == last) store_relaxed(board.tickets, ((ticket >> 32) + 1) << 32);
}

//@ launch_of
__device__ __forceinline__ unsigned launch_of(unsigned long long ticket) { return (unsigned)(ticket >> 32) + 1; }

//@ publish
__device__ __forceinline__ void publish(const Board& board, unsigned launch, long long tile, State total) {
    unsigned piece[kWords];
    memcpy(piece, &total, sizeof(State));
#pragma unroll
    for (int k = 0; k < kWords; ++k)
        store_relaxed(board.word + tile * kWords + k, (unsigned long long)launch << 32 | piece[k]);
}

//@ peek
__device__ __forceinline__ Words peek(const Board& board, long long tile) {
    Words words;
#pragma unroll
    for (int k = 0; k < kWords; ++k) words.piece[k] = load_relaxed(board.word + tile * kWords + k);
    return words;
}

//@ is_missing
__device__ __forceinline__ bool is_missing(const Words& words, unsigned launch) {
    bool missing = false;
#pragma unroll
    for (int k = 0; k < kWords; ++k) missing = missing || words.piece[k] >> 32 != launch;
    return missing;
}

//@ total_of
__device__ __forceinline__ State total_of(const Words& words) {
    unsigned piece[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) piece[k] = (unsigned)words.piece[k];
    State total;
    memcpy(&total, piece, sizeof(State));
    return total;
}

//@ await
// Spin until the tile's status is of this launch, then return the tile's total.
__device__ __forceinline__ State await(const Board& board, unsigned launch, long long tile, Words words) {
    while (is_missing(words, launch)) words = peek(board, tile);
    return total_of(words);
}

//@ await_groups
// Look-back of rows: totals of tiles are folded in groups of 32, by a warp each. Wait for the totals of kWarps groups
// from `group` on, of the tiles of a row that precede tile `index`; `first`: its first tile. Leaves the total of each
// group in group_total.
__device__ __forceinline__ void await_groups(State* group_total, const Board& board, unsigned launch, long long first,
                                             int group, int index) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (group + warp) * 32 + lane;
    State total = tile < index ? await(board, launch, first + tile, peek(board, first + tile)) : identity();
    total = scan_lanes(total, lane);
    __syncthreads();
    if (lane == 31) group_total[warp] = total;
    __syncthreads();
}

