// Atomics, flags between blocks, asynchronous copies, cached loads.
#pragma once
#pragma GCC system_header

#include "schedule.h"

namespace scanops_emulator {
namespace {

// A poll gives way, so that the thread that sets the flag can run. With a seed it sometimes reads at once.
template <class Word>
[[gnu::noinline, maybe_unused]] Word poll(const Word* flag, int line) {
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
    const Word value = *static_cast<const volatile Word*>(flag);
    if (flag != current->polled || value != current->polled_value) {
        note_event();
        current->polled = flag;
        current->polled_value = value;
    }
    return value;
}

template <class Type>
[[maybe_unused]] Type add(Type* address, Type value) {
    maybe_give_way(4);
    note_change();
    const Type old = *static_cast<volatile Type*>(address);
    *static_cast<volatile Type*>(address) = static_cast<Type>(old + value);
    return old;
}

[[maybe_unused]] void check_copy(const void* target, const void* source, unsigned bytes, int line) {
    if (reinterpret_cast<size_t>(target) % bytes != 0 || reinterpret_cast<size_t>(source) % bytes != 0)
        SCANOPS_FAIL(line, "copy_async_%u: misaligned address: target %p or source %p is not a multiple of %u", bytes,
                     target, source, bytes);
    const size_t offset = reinterpret_cast<size_t>(target) - reinterpret_cast<size_t>(shared_begin());
    if (offset > shared_bytes() || shared_bytes() - offset < bytes)
        SCANOPS_FAIL(line, "copy_async_%u: the target is not in shared memory (offset %lld, shared bytes %zu)", bytes,
                     static_cast<long long>(offset), shared_bytes());
}

[[maybe_unused]] void enqueue(CopyQueue& queue, const Copy& copy) {
    if (queue.first == queue.end) queue.first = queue.end = 0;
    if (queue.end == queue.capacity) {
        queue.capacity = queue.capacity == 0 ? 8 : 2 * queue.capacity;
        queue.items = static_cast<Copy*>(realloc(queue.items, queue.capacity * sizeof(Copy)));
        if (queue.items == nullptr) abort();
    }
    queue.items[queue.end++] = copy;
}

// With a seed, every other copy lands at once: early where a buffer is still being read, late where a wait is missing.
[[gnu::noinline, maybe_unused]] void copy_async(void* target, const void* source, unsigned bytes, int line) {
    check_copy(target, source, bytes, line);
    if (chance_of_one_in(2))
        memcpy(target, source, bytes);
    else
        enqueue(current->copies, {target, source, bytes, current->copies.committed});
}

[[gnu::noinline, maybe_unused]] void land_copies(unsigned groups_in_flight) {
    CopyQueue& queue = current->copies;
    for (; queue.first != queue.end; ++queue.first) {
        const Copy& copy = queue.items[queue.first];
        if (copy.group + groups_in_flight >= queue.committed) return;
        memcpy(copy.target, copy.source, copy.bytes);
    }
}

}  // namespace
}  // namespace scanops_emulator

[[maybe_unused]] static inline int atomicAdd(int* address, int value) {
    // Wraps, as the hardware does.
    return static_cast<int>(scanops_emulator::add(reinterpret_cast<unsigned*>(address), static_cast<unsigned>(value)));
}

[[maybe_unused]] static inline unsigned atomicAdd(unsigned* address, unsigned value) {
    return scanops_emulator::add(address, value);
}

[[maybe_unused]] static inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
    return scanops_emulator::add(address, value);
}

// A word that holds both a value and the flag that says it is there needs no fence around it.
template <class Word>
[[maybe_unused]] static inline Word load_relaxed(const Word* word, int line = __builtin_LINE()) {
    asm volatile("" ::: "memory");
    const Word value = scanops_emulator::poll(word, line);
    asm volatile("" ::: "memory");
    return value;
}

template <class Word>
[[maybe_unused]] static inline void store_relaxed(Word* word, Word value) {
    asm volatile("" ::: "memory");
    *static_cast<volatile Word*>(word) = value;
    scanops_emulator::note_change();
    // A reader may see the word before anything that follows it here.
    scanops_emulator::maybe_give_way(2);
    asm volatile("" ::: "memory");
}

[[maybe_unused]] static inline void __threadfence() {
    asm volatile("" ::: "memory");
    scanops_emulator::maybe_give_way(4);
    asm volatile("" ::: "memory");
}

[[maybe_unused]] static inline void copy_async_16(void* shared, const void* global, int line = __builtin_LINE()) {
    scanops_emulator::copy_async(shared, global, 16, line);
    asm volatile("" ::: "memory");
}

[[maybe_unused]] static inline void copy_stream_16(void* shared, const void* global, int line = __builtin_LINE()) {
    copy_async_16(shared, global, line);
}

[[maybe_unused]] static inline void copy_async_8(void* shared, const void* global, int line = __builtin_LINE()) {
    scanops_emulator::copy_async(shared, global, 8, line);
    asm volatile("" ::: "memory");
}

[[maybe_unused]] static inline void copy_async_4(void* shared, const void* global, int line = __builtin_LINE()) {
    scanops_emulator::copy_async(shared, global, 4, line);
    asm volatile("" ::: "memory");
}

[[maybe_unused]] static inline void copy_async_commit() { ++scanops_emulator::current->copies.committed; }

// Waits until at most `groups_in_flight` of the newest committed groups have not landed.
template <int groups_in_flight>
[[maybe_unused]] static inline void copy_async_wait() {
    static_assert(groups_in_flight >= 0);
    asm volatile("" ::: "memory");
    scanops_emulator::land_copies(groups_in_flight);
    asm volatile("" ::: "memory");
}

template <class Type> [[maybe_unused]] static inline Type __ldg(const Type* address) { return *address; }
template <class Type> [[maybe_unused]] static inline Type __ldcg(const Type* address) { return *address; }
