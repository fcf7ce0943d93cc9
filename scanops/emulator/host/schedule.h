// Who runs next. A thread runs until it waits; then the next one is found from bit masks. With a seed, the search
// begins at a random warp and lane and keeps that preference for a while, so that one warp runs far ahead of another:
// that is what shows a missing barrier.
#pragma once

#include <string.h>

#include "../global_memory.h"
#include "../launch.h"
#include "fibers.h"

// Made by the linker around the section of __shared__; null in a kernel without shared memory.
extern "C" {
extern char __start_scanops_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_scanops_shared[] __attribute__((weak, visibility("hidden")));
}

namespace scanops_emulator {
namespace {

// Through asm: the compiler must not conclude that these differ from the kernel's arrays.
char* shared_begin() {
    char* begin = __start_scanops_shared;
    asm volatile("" : "+r"(begin) : : "memory");
    return begin;
}

size_t shared_bytes() {
    return reinterpret_cast<size_t>(__stop_scanops_shared) - reinterpret_cast<size_t>(__start_scanops_shared);
}

unsigned random_number() {
    grid.random ^= grid.random << 13;
    grid.random ^= grid.random >> 7;
    grid.random ^= grid.random << 17;
    return static_cast<unsigned>(grid.random >> 24);
}

[[gnu::always_inline]] inline bool chance_of_one_in(unsigned power_of_two) {
    return grid.random != 0 && (random_number() & (power_of_two - 1)) == 0;
}

[[gnu::always_inline]] inline unsigned pick_bit(unsigned bits) {
    if (grid.random == 0) return static_cast<unsigned>(__builtin_ctz(bits));
    const unsigned turn = grid.rotation & 31;
    const unsigned turned = turn == 0 ? bits : (bits >> turn) | (bits << (32 - turn));
    const int found = grid.descending ? 31 - __builtin_clz(turned) : __builtin_ctz(turned);
    return (static_cast<unsigned>(found) + turn) & 31;
}

void make_ready(Warp& warp, unsigned lanes) {
    if (lanes == 0) return;
    warp.ready |= lanes;
    warp.block->ready_warps |= 1u << warp.number;
}

[[gnu::always_inline]] inline Thread* take_ready(Warp& warp, unsigned lanes) {
    const unsigned lane = pick_bit(lanes);
    warp.ready &= ~(1u << lane);
    if (warp.ready == 0) warp.block->ready_warps &= ~(1u << warp.number);
    return warp.threads + lane;
}

void wake_pollers(Block& block) {
    while (block.polling_warps != 0) {
        Warp& warp = block.warp[__builtin_ctz(block.polling_warps)];
        block.polling_warps &= block.polling_warps - 1;
        make_ready(warp, warp.polling);
        warp.polling = 0;
    }
}

[[noreturn]] void report_deadlock(Block& block) {
    // A lane that waits for absent lanes says more than the threads that wait for it.
    Thread* witness = nullptr;
    for (unsigned number = 0; number < block.threads; ++number) {
        Thread& thread = block.thread[number];
        if (waits(thread) && (witness == nullptr || (witness->mask == 0 && thread.mask != 0))) witness = &thread;
    }
    report_length = 0;
    append_place(*witness, witness->line);
    append("deadlock in %s: no thread of the block can run", operation_name[static_cast<int>(witness->operation)]);
    append_all_waits(&block);
    stop_launch();
}

// The running thread has recorded what it waits for, has made itself ready, or has left.
// anew: drop the preference for the warp and the block that ran so far.
Thread* choose_thread(bool anew = false) {
    unsigned place = static_cast<unsigned>(current->warp->block - grid.blocks);
    if (anew || chance_of_one_in(64)) {
        grid.rotation = random_number();
        grid.descending = (random_number() & 1) != 0;
        place = random_number() % grid.resident;
        for (unsigned number = 0; number < grid.resident; ++number) wake_pollers(grid.blocks[number]);
    }
    for (int round = 0; round < 2; ++round) {
        for (unsigned step = 0; step < grid.resident; ++step) {
            Block& block = grid.blocks[place];
            if (block.live != 0) {
                if (block.ready_warps != 0) {
                    Warp& warp = block.warp[pick_bit(block.ready_warps)];
                    return take_ready(warp, warp.ready);
                }
                if (block.polling_warps == 0) report_deadlock(block);
            }
            place = place + 1 == grid.resident ? 0 : place + 1;
        }
        for (unsigned number = 0; number < grid.resident; ++number) wake_pollers(grid.blocks[number]);
        // Another block first: what this one polls for is not its own work, which has all been done.
        place = place + 1 == grid.resident ? 0 : place + 1;
    }
    abort();
}

[[gnu::noinline]] void load_block(Block& block) {
    const size_t bytes = shared_bytes();
    char* shared = shared_begin();
    if (bytes != 0) {
        if (loaded_block != nullptr) memcpy(loaded_block->shared, shared, bytes);
        memcpy(shared, block.shared, bytes);
    }
    loaded_block = &block;
    blockIdx = block.index;
    asm volatile("" ::: "memory");
}

[[gnu::always_inline]] inline void set_current(Thread* thread) {
    current = thread;
    threadIdx = thread->index;
    if (thread->warp->block != loaded_block) load_block(*thread->warp->block);
}

[[gnu::always_inline]] inline void run_thread(Thread* next) {
    if (next == current) return;
    Fiber* from = current->fiber;
    if (next->fiber == nullptr) next->fiber = take_fiber();
    set_current(next);
    switch_fiber(from, next->fiber);
}

[[gnu::always_inline]] inline void wait_for(Operation operation, int line, unsigned mask) {
    current->operation = operation;
    current->line = line;
    current->mask = mask;
}

void note_event() { grid.polls_since_event = 0; }

}  // namespace

void note_change() {
    grid.polls_since_event = 0;
    grid.polls_since_change = 0;
}

// Lets others run now and then, where a GPU might interleave them.
void maybe_give_way(unsigned one_in) {
    if (!chance_of_one_in(one_in)) return;
    current->operation = Operation::none;
    make_ready(*current->warp, 1u << current->lane);
    run_thread(choose_thread(true));
}

namespace {

void start_block(Block& block) {
    const unsigned long long number = grid.started++;
    block.index = {static_cast<unsigned>(number % gridDim.x), static_cast<unsigned>(number / gridDim.x % gridDim.y),
                   static_cast<unsigned>(number / gridDim.x / gridDim.y)};
    block.live = block.threads;
    block.ready_warps = block.polling_warps = block.waiting = 0;
    for (unsigned warp_number = 0; warp_number < block.warp_count; ++warp_number) {
        Warp& warp = block.warp[warp_number];
        const unsigned lanes = block.threads - warp_number * warp_lanes;
        warp.present = lanes >= warp_lanes ? 0xffffffffu : (1u << lanes) - 1;
        warp.ready = warp.polling = warp.open_calls = 0;
        make_ready(warp, warp.present);
    }
    for (unsigned thread_number = 0; thread_number < block.threads; ++thread_number) {
        Thread& thread = block.thread[thread_number];
        thread.fiber = nullptr;
        thread.operation = Operation::none;
        thread.polled = nullptr;
        thread.copies.first = thread.copies.end = thread.copies.committed = 0;
    }
    // NaN in every float format: a read before the first write shows. With a seed, at times zeros: other bits show.
    if (shared_bytes() != 0) memset(block.shared, chance_of_one_in(2) ? 0 : 0xff, shared_bytes());
    if (loaded_block == &block) loaded_block = nullptr;
    ++grid.active;
}

// The running thread has returned from the kernel.
void leave_kernel() {
    Warp& warp = *current->warp;
    Block& block = *warp.block;
    const unsigned bit = 1u << current->lane;
    if (block.waiting != 0) {
        const uint3 first = block.barrier_first->index;
        SCANOPS_FAIL(block.barrier_line, "this thread left the kernel while %u thread%s of its block, first (%u,%u,%u), "
                     "wait at __syncthreads", block.waiting, block.waiting == 1 ? "" : "s", first.x, first.y, first.z);
    }
    for (unsigned number = 0; number < warp.open_calls; ++number) {
        const Call& call = warp.calls[number];
        if ((call.mask & bit) == 0) continue;
        SCANOPS_FAIL(call.line, "this thread, lane %u, left the kernel while other lanes wait for it in %s, mask 0x%08x",
                     current->lane, operation_name[static_cast<int>(call.operation)], call.mask);
    }
    warp.present &= ~bit;
    current->fiber = nullptr;
    note_change();
    if (--block.live != 0) return;
    --grid.active;
    if (grid.started < grid.block_count) start_block(block);
}

// Life of a fiber: run a thread to its end, take the next one. A thread that has not started takes over the stack.
void fiber_main() {
    for (;;) {
        grid.launch->invoke(grid.launch->kernel, grid.launch->arguments);
        Fiber* self = stacks.running;
        leave_kernel();
        if (grid.active == 0) _longjmp(grid.home, 2);
        Thread* next = choose_thread();
        set_current(next);
        if (next->fiber == nullptr) {
            next->fiber = self;
        } else {
            release_fiber(self);
            switch_fiber(self, next->fiber);
        }
    }
}

}  // namespace
}  // namespace scanops_emulator
