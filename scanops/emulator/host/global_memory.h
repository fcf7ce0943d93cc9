// Polls of a flag, and copies that land late.
#pragma once

#include <time.h>

#include "../global_memory.h"
#include "schedule.h"

namespace scanops_emulator {
namespace {

void check_copy(const void* target, const void* source, unsigned bytes, int line) {
    if (reinterpret_cast<size_t>(target) % bytes != 0 || reinterpret_cast<size_t>(source) % bytes != 0)
        SCANOPS_FAIL(line, "copy_async of %u bytes: misaligned address: target %p or source %p is not a multiple of %u",
                     bytes, target, source, bytes);
    const size_t offset = reinterpret_cast<size_t>(target) - reinterpret_cast<size_t>(shared_begin());
    if (offset > shared_bytes() || shared_bytes() - offset < bytes)
        SCANOPS_FAIL(line, "copy_async of %u bytes: the target is not in shared memory (offset %lld, shared bytes %zu)",
                     bytes, static_cast<long long>(offset), shared_bytes());
}

void enqueue(CopyQueue& queue, const Copy& copy) {
    if (queue.first == queue.end) queue.first = queue.end = 0;
    if (queue.end == queue.capacity) {
        queue.capacity = queue.capacity == 0 ? 8 : 2 * queue.capacity;
        queue.items = static_cast<Copy*>(realloc(queue.items, queue.capacity * sizeof(Copy)));
        if (queue.items == nullptr) abort();
    }
    queue.items[queue.end++] = copy;
}

}  // namespace

void before_poll(int line) {
    Warp& warp = *current->warp;
    wait_for(Operation::poll, line, 0);
    ++grid.polls_since_event;
    ++grid.polls_since_change;
    if (grid.polls_since_event > stuck_polls || grid.polls_since_change > endless_polls) {
        report_length = 0;
        append_place(*current, line);
        append("livelock: the thread waits for a flag nobody sets (last value %llu)", current->polled_value);
        append_all_waits(nullptr);
        stop_launch();
    }
    if (!chance_of_one_in(2)) {
        warp.polling |= 1u << current->lane;
        warp.block->polling_warps |= 1u << warp.number;
        run_thread(choose_thread());
    }
}

void after_poll(const void* flag, unsigned long long value) {
    if (flag == current->polled && value == current->polled_value) return;
    note_event();
    current->polled = flag;
    current->polled_value = value;
}

// With a seed, every other copy lands at once: early where a buffer is still being read, late where a wait is missing.
void copy_async(void* target, const void* source, unsigned bytes, int line) {
    check_copy(target, source, bytes, line);
    if (chance_of_one_in(2))
        memcpy(target, source, bytes);
    else
        enqueue(current->copies, {target, source, bytes, current->copies.committed});
}

void commit_copies() { ++current->copies.committed; }

void land_copies(unsigned groups_in_flight) {
    CopyQueue& queue = current->copies;
    for (; queue.first != queue.end; ++queue.first) {
        const Copy& copy = queue.items[queue.first];
        if (copy.group + groups_in_flight >= queue.committed) return;
        memcpy(copy.target, copy.source, copy.bytes);
    }
}

}  // namespace scanops_emulator

unsigned long long nanoseconds() {
    timespec now, pause = {0, 100000};
    scanops_emulator::note_change();  // another process may be the one that is waited for, or be compiling its kernel
    nanosleep(&pause, nullptr);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<unsigned long long>(now.tv_sec) * 1000000000ull + static_cast<unsigned long long>(now.tv_nsec);
}
