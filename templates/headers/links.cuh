// What linked GPUs hand on.
#pragma once
#include "headers/tile_status.cuh"

// ---- linked lines: a rank hands on the state at the end of each line as status words of its launch, which it stores
// in the memory of the next rank. Launches of all kernels take turns with two halves of its inbox.
struct Link {
    unsigned long long* memory;     // of this rank: the words below, then the inbox
    int half;                       // words of half an inbox
    int has_previous;               // whether a rank is before this one: the lines of the first rank begin here
    unsigned long long* next_rank;  // memory of the rank after this one; null on the last one, where lines end
};

inline constexpr int kTickets = 0;  // finished launches and tickets, as in a workspace
inline constexpr int kFailure = 1;  // which launches fail: see has_failed
inline constexpr int kTimeLimit = 2;  // longest wait in nanoseconds
inline constexpr int kFault = 3;  // the address of a word that the host reads, or 0
inline constexpr int kInbox = 4;  // status words

// The states that reach a rank in a launch, of each line.
__device__ __forceinline__ TileStatus inbox_of(unsigned long long* memory, long long half, unsigned epoch) {
    return {nullptr, memory + kInbox + (epoch & 1) * half};
}

__device__ __forceinline__ TileStatus own_inbox(const Link& link, unsigned epoch) {
    return inbox_of(link.memory, link.half, epoch);
}

// Whether the launch of `epoch` has failed. `failure`: 0; or the epoch of the first launch for which a rank waits in vain,
// because another one has refused the call; with a bit above it once a launch of this rank has waited in vain, so that
// those after it fail as well. Launches before are not concerned: a slower rank may still be in them. The sign of the
// difference says which of two epochs is ahead, as in has_room.
__device__ __forceinline__ bool has_failed(unsigned long long failure, unsigned epoch) {
    return failure >> kEpochShift != 0 || (failure != 0 && (int)(epoch - (unsigned)failure) >= 0);
}

// Whether a wait since `since`, 0 where it begins, is over its limit, or for a rank that has refused the call: then this
// launch has failed, and those after it, and nothing waits any longer.
__device__ __forceinline__ bool is_overdue(const Link& link, unsigned epoch, unsigned long long& since) {
    const unsigned long long now = nanoseconds(), failure = load_relaxed(link.memory + kFailure);
    if (since == 0) since = now;
    if (!has_failed(failure, epoch) && now - since < load_relaxed(link.memory + kTimeLimit)) return false;
    store_relaxed(link.memory + kFailure, failure | 1ull << kEpochShift);
    auto* const fault = reinterpret_cast<unsigned long long*>(load_relaxed(link.memory + kFault));
    if (fault) store_relaxed(fault, 1ull);
    return true;
}

inline constexpr int kLooksPerCheck = 16;  // at a word, for each at the clock

// Wait for the state that the previous rank hands on at the end of a line; `words`: its status, as read before.
__device__ __forceinline__ State wait_for_state(const Link& link, unsigned epoch, long long line, StatusWords words) {
    unsigned long long since = 0;
    for (int look = 1; is_stale(words, epoch); ++look) {
        words = load_status(own_inbox(link, epoch), line);
        if (look % kLooksPerCheck == 0 && is_overdue(link, epoch, since)) break;
    }
    return value_of(words);
}

// The same of a line whose status was not read before.
__device__ __forceinline__ State receive_state(const Link& link, unsigned epoch, long long line) {
    return wait_for_state(link, epoch, line, load_status(own_inbox(link, epoch), line));
}

// The tickets of the next rank: once it has begun a launch, it has read all that reached it in the launch before.
__device__ __forceinline__ unsigned long long load_tickets(const Link& link) {
    return link.next_rank ? load_relaxed(link.next_rank + kTickets) : 0;
}

// Whether the next rank has read what reached it two launches before that of `epoch`, in the same half of its inbox: it
// is in this launch, or has begun the one in between. `tickets`: those of the next rank. Epochs begin again after
// kEpochs launches, and ranks are at most a few launches apart: so the sign of the difference says which of two epochs
// is ahead, which `<` does not, and the launch in between is found by equality.
__device__ __forceinline__ bool has_room(unsigned long long tickets, unsigned epoch) {
    const unsigned next_epoch = epoch_of(tickets), between = epoch == 1 ? kEpochs : epoch - 1;
    const bool has_begun = (unsigned)tickets != 0;
    return (int)(next_epoch - epoch) >= 0 || (next_epoch == between && has_begun);
}

// Hand the state at the end of a line on, once the next rank has room for it; `tickets`: those of the next rank, as read
// before.
__device__ __forceinline__ void send_state(const Link& link, unsigned epoch, long long line, State state,
                                           unsigned long long tickets) {
    unsigned long long since = 0;
    for (int look = 1; !has_room(tickets, epoch); ++look) {
        tickets = load_tickets(link);
        if (look % kLooksPerCheck == 0 && is_overdue(link, epoch, since)) break;
    }
    publish(inbox_of(link.next_rank, link.half, epoch), epoch, line, state);
}
