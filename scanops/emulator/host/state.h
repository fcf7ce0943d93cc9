// What every thread, warp and block of the running grid is doing. All of it is hidden: many libraries with an emulator
// inside live in one process, each with its own.
#pragma once

#include <setjmp.h>

#include "../collectives.h"
#include "../types.h"

namespace scanops_emulator __attribute__((visibility("hidden"))) {

constexpr unsigned warp_lanes = 32;
constexpr unsigned block_warps = 32;
constexpr unsigned block_threads = warp_lanes * block_warps;

struct Launch;
struct Fiber;
struct Warp;
struct Block;

constexpr const char* operation_name[] = {
    "nothing", "__syncthreads", "load_relaxed", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
    "__shfl_xor_sync", "__ballot_sync", "__any_sync", "__all_sync", "__syncwarp"};

struct Copy {
    void* target;        // in shared memory
    const void* source;  // in global memory
    unsigned bytes;
    unsigned group;      // number of the commit that closes it, from 0
};

// Asynchronous copies that were issued and have not landed, oldest first.
struct CopyQueue {
    Copy* items;
    unsigned first, end, capacity;
    unsigned committed;  // groups closed so far
};

struct Thread {
    uint3 index;
    unsigned lane;
    Warp* warp;
    Fiber* fiber;  // null before the thread starts

    // What it waits for; meaningful while it is neither running nor ready.
    Operation operation;
    int line;
    unsigned mask;

    // The last poll, to tell a loop that gets nowhere from a walk over flags.
    const void* polled;
    unsigned long long polled_value;

    CopyQueue copies;
};

// A warp collective that some lanes of its mask have not reached.
struct Call {
    Operation operation;
    int line;
    unsigned mask;
    unsigned arrived;
};

struct Warp {
    Block* block;
    Thread* threads;     // its lane 0
    unsigned number;     // in the block
    unsigned present;    // lanes that exist and have not left the kernel
    unsigned ready;      // lanes that could run and do not
    unsigned polling;    // lanes that gave way in a spin loop
    unsigned open_calls;
    Call calls[warp_lanes];

    // A lane is in one call at a time, so these belong to lanes and not to calls.
    unsigned long long value[warp_lanes];
    unsigned long long result[warp_lanes];
    unsigned source[warp_lanes];
};

struct Block {
    uint3 index;
    unsigned threads;        // started with
    unsigned live;           // that have not left the kernel; 0 marks a free place
    unsigned warp_count;
    unsigned ready_warps;    // warps with a ready lane
    unsigned polling_warps;  // warps with a polling lane
    unsigned waiting;        // threads at the barrier
    int barrier_line;
    Thread* barrier_first;
    char* shared;            // its shared memory while another block's is loaded
    Warp warp[block_warps];
    Thread thread[block_threads];
};

struct Settings {
    unsigned long long seed = 0;
    int resident_blocks = 3;
};

// Limits on polls in a row. "stuck": every thread read an unchanged flag and nothing else happened, so nothing ever
// will. "endless": polls mixed with collectives, but no thread came or went and no flag or counter was written.
constexpr unsigned stuck_polls = 100'000;
constexpr unsigned endless_polls = 4'000'000;

struct Grid {
    Block* blocks;  // resident places
    unsigned resident;
    unsigned active;                 // places in use
    unsigned long long started;      // blocks of the grid
    unsigned long long block_count;
    unsigned long long random;       // state of the generator; 0 keeps everything in order
    unsigned rotation;               // where the search for the next thread begins, for warps and for lanes
    bool descending;
    unsigned polls_since_event;
    unsigned polls_since_change;
    const Launch* launch;            // the kernel with its arguments
    jmp_buf home;                    // the launch that waits for the grid
    bool running;
};

extern Settings settings;
extern Grid grid;
extern Thread* current;      // the running thread
extern Block* loaded_block;  // whose shared memory is in place

}  // namespace scanops_emulator
