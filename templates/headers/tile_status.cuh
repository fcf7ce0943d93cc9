// The status of tiles, which blocks publish for decoupled look-back.
#pragma once
#include "headers/status_intrinsics.cuh"

// ---- tile status for decoupled look-back: value and launch epoch in one 64-bit word, accessed as a whole, so no fence
// is needed. A word of an earlier launch is invalid by its epoch, so nothing needs to be cleared between launches.
static_assert(sizeof(State) == kStatusWords * sizeof(unsigned), "a state is published in whole words");

struct TileStatus {               // the workspace
    unsigned long long* tickets;  // finished launches (high half), tickets taken in this one (low half)
    unsigned long long*
        word;  // kStatusWords per tile: launch epoch (high half), a piece of the tile's total (low half)
};

inline constexpr int kEpochShift = 32;  // an epoch is the high half of a word

struct StatusWords {
    unsigned long long piece[kStatusWords];
};

__device__ __forceinline__ unsigned long long take_ticket(const TileStatus& tile_status) {
    return atomicAdd(tile_status.tickets, 1ull);
}

// Epochs of launches: 1 to kEpochs, then 1 again, never 0, which a cleared word holds. Their number is even, so that odd
// and even epochs alternate there too (see inbox_of). A word of as many launches ago would be taken for one of this
// launch, if none of the launches in between had as many tiles.
inline constexpr unsigned kEpochs = 0xfffffffeu;

// The block with the last ticket of a launch advances the epoch for the next one.
__device__ __forceinline__ void advance_epoch(const TileStatus& tile_status, unsigned long long ticket, unsigned last) {
    if ((unsigned)ticket != last) return;
    const unsigned finished = (unsigned)(ticket >> kEpochShift) + 1;
    store_relaxed(tile_status.tickets, (unsigned long long)(finished == kEpochs ? 0 : finished) << kEpochShift);
}

__device__ __forceinline__ unsigned epoch_of(unsigned long long ticket) { return (unsigned)(ticket >> kEpochShift) + 1; }

__device__ __forceinline__ void publish(const TileStatus& tile_status, unsigned epoch, long long tile, State total) {
    unsigned piece[kStatusWords];
    memcpy(piece, &total, sizeof(State));
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k)
        store_relaxed(tile_status.word + tile * kStatusWords + k, (unsigned long long)epoch << kEpochShift | piece[k]);
}

__device__ __forceinline__ StatusWords load_status(const TileStatus& tile_status, long long tile) {
    StatusWords words;
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k) words.piece[k] = load_relaxed(tile_status.word + tile * kStatusWords + k);
    return words;
}

__device__ __forceinline__ bool is_stale(const StatusWords& words, unsigned epoch) {
    bool missing = false;
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k) missing = missing || words.piece[k] >> kEpochShift != epoch;
    return missing;
}

__device__ __forceinline__ State value_of(const StatusWords& words) {
    unsigned piece[kStatusWords];
#pragma unroll
    for (int k = 0; k < kStatusWords; ++k) piece[k] = (unsigned)words.piece[k];
    State total;
    memcpy(&total, piece, sizeof(State));
    return total;
}

// Spin until the tile's status is of this launch, then return the tile's total. There is no back-off: a block waits only
// for tiles with lower tickets, whose blocks run already, and finds them published after one or two reads as a rule. A
// sleep would add its length to the latency of the chain that all later tiles wait for.
__device__ __forceinline__ State wait_for_status(const TileStatus& tile_status, unsigned epoch, long long tile,
                                                 StatusWords words) {
    while (is_stale(words, epoch)) words = load_status(tile_status, tile);
    return value_of(words);
}
