// Stacks, and switches between them that need no system call. makecontext starts a fiber; _setjmp and _longjmp switch.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "report.h"

namespace scanops_emulator {

// Lies at the top of its own stack.
struct Fiber {
    jmp_buf registers;
    char* stack;
    size_t stack_bytes;
    Fiber* next_free;
    bool entered;
};

namespace {

constexpr size_t stack_bytes = 128 * 1024;
constexpr unsigned arena_stacks = 64;
constexpr unsigned arena_limit = 4 * block_threads;  // more than threads / arena_stacks can ever need

// The stacks of one launch. They go back to the system after it: each guard page splits a mapping, a process may have
// only 65530 of those, and hundreds of libraries that each kept a thousand stacks would use them up.
struct Stacks {
    char* arenas[arena_limit];
    unsigned arena_count;
    unsigned used;  // stacks of the newest arena
    size_t stride;
    Fiber* free;
    Fiber* running;
    ucontext_t starter;
};

Stacks stacks;

void fiber_main();

void open_stacks() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    stacks.arena_count = 0;
    stacks.used = arena_stacks;
    stacks.stride = stack_bytes + page;
    stacks.free = nullptr;
    stacks.running = nullptr;
    getcontext(&stacks.starter);
}

void close_stacks() {
    for (unsigned number = 0; number < stacks.arena_count; ++number)
        munmap(stacks.arenas[number], stacks.stride * arena_stacks);
    stacks.arena_count = 0;
}

void add_arena() {
    void* arena = MAP_FAILED;
    if (stacks.arena_count < arena_limit)
        arena = mmap(nullptr, stacks.stride * arena_stacks, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) {
        report_length = 0;
        append("the emulator got no memory for the stacks of %u threads", (stacks.arena_count + 1) * arena_stacks);
        stop_launch();
    }
    stacks.arenas[stacks.arena_count++] = static_cast<char*>(arena);
    stacks.used = 0;
}

Fiber* take_fiber() {
    if (Fiber* fiber = stacks.free) {
        stacks.free = fiber->next_free;
        return fiber;
    }
    if (stacks.used == arena_stacks) add_arena();
    const unsigned number = stacks.used++;
    char* guard = stacks.arenas[stacks.arena_count - 1] + stacks.stride * number;
    mprotect(guard, stacks.stride - stack_bytes, PROT_NONE);
    // Tops at different offsets in a page: equal ones would all fall into the same cache sets.
    const size_t colour = (number % 16) * 192;
    char* top = guard + stacks.stride - sizeof(Fiber) - colour;
    Fiber* fiber = reinterpret_cast<Fiber*>(reinterpret_cast<size_t>(top) & ~size_t{63});
    fiber->stack = guard + (stacks.stride - stack_bytes);
    fiber->stack_bytes = static_cast<size_t>(reinterpret_cast<char*>(fiber) - fiber->stack);
    fiber->entered = false;
    return fiber;
}

void release_fiber(Fiber* fiber) {
    fiber->next_free = stacks.free;
    stacks.free = fiber;
}

[[noreturn, gnu::always_inline]] inline void enter_fiber(Fiber* fiber) {
    stacks.running = fiber;
    if (fiber->entered) _longjmp(fiber->registers, 1);
    fiber->entered = true;
    stacks.starter.uc_stack.ss_sp = fiber->stack;
    stacks.starter.uc_stack.ss_size = fiber->stack_bytes;
    stacks.starter.uc_link = nullptr;
    makecontext(&stacks.starter, fiber_main, 0);
    setcontext(&stacks.starter);
    abort();
}

// Returns when some other fiber switches back. Not inlined: nothing of the caller may live in registers across it.
[[gnu::noinline]] void switch_fiber(Fiber* from, Fiber* to) {
    if (_setjmp(from->registers) == 0) enter_fiber(to);
    asm volatile("" ::: "memory");
}

}  // namespace
}  // namespace scanops_emulator
