// The first thing that goes wrong stops the launch, and its text is what cudaGetErrorString returns.
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include "state.h"

namespace scanops_emulator {
namespace {

// Per OS thread: a second thread's launch must not replace the text before the first has read it.
thread_local char report_text[4096];
thread_local size_t report_length;

[[gnu::format(printf, 1, 2)]] void append(const char* format, ...) {
    if (report_length >= sizeof report_text - 1) return;
    va_list values;
    va_start(values, format);
    const int written = vsnprintf(report_text + report_length, sizeof report_text - report_length, format, values);
    va_end(values);
    if (written > 0) report_length += static_cast<size_t>(written);
}

void append_place(const Thread& thread, int line) {
    const uint3 block = thread.warp->block->index;
    append("block (%u,%u,%u) thread (%u,%u,%u), kernel line %d: ", block.x, block.y, block.z,
           thread.index.x, thread.index.y, thread.index.z, line);
}

// Leaves every fiber where it is; the launch drops their stacks.
[[noreturn]] void stop_launch() { _longjmp(grid.home, 1); }

// SCANOPS_FAIL(line, format, ...): one sentence about the running thread.
#define SCANOPS_FAIL(line, ...)                                     \
    do {                                                            \
        ::scanops_emulator::report_length = 0;                      \
        ::scanops_emulator::append_place(*::scanops_emulator::current, line); \
        ::scanops_emulator::append(__VA_ARGS__);                    \
        ::scanops_emulator::stop_launch();                          \
    } while (false)

void append_lanes(unsigned lanes) {
    const char* separator = "";
    while (lanes != 0) {
        append("%s%d", separator, __builtin_ctz(lanes));
        lanes &= lanes - 1;
        separator = ",";
    }
}

bool same_wait(const Thread& left, const Thread& right) {
    return left.operation == right.operation && left.line == right.line && left.mask == right.mask &&
           (left.mask == 0 || left.warp == right.warp);
}

bool waits(const Thread& thread) {
    const unsigned bit = 1u << thread.lane;
    if ((thread.warp->present & bit) == 0 || thread.operation == Operation::none) return false;
    // A thread in a spin loop is ready between two polls.
    return (thread.warp->ready & bit) == 0 || thread.operation == Operation::poll;
}

// One line for each place of the block where threads wait.
void append_waits(const Block& block) {
    for (unsigned number = 0; number < block.threads; ++number) {
        const Thread& thread = block.thread[number];
        if (!waits(thread)) continue;
        bool listed = false;
        for (unsigned earlier = 0; earlier < number && !listed; ++earlier)
            listed = waits(block.thread[earlier]) && same_wait(block.thread[earlier], thread);
        if (listed) continue;
        unsigned count = 0, lanes = 0;
        for (unsigned later = number; later < block.threads; ++later) {
            if (!waits(block.thread[later]) || !same_wait(block.thread[later], thread)) continue;
            ++count;
            lanes |= 1u << block.thread[later].lane;
        }
        append("\n  block (%u,%u,%u): %u thread%s, first (%u,%u,%u), in %s at line %d", block.index.x, block.index.y,
               block.index.z, count, count == 1 ? "" : "s", thread.index.x, thread.index.y, thread.index.z,
               operation_name[static_cast<int>(thread.operation)], thread.line);
        if (thread.mask == 0) continue;
        append(", mask 0x%08x, absent lanes ", thread.mask);
        append_lanes(thread.mask & ~lanes);
    }
}

// Every resident block when only_block is null.
void append_all_waits(const Block* only_block) {
    for (unsigned place = 0; place < grid.resident; ++place) {
        const Block& block = grid.blocks[place];
        if (block.live != 0 && (only_block == nullptr || only_block == &block)) append_waits(block);
    }
}

}  // namespace
}  // namespace scanops_emulator
