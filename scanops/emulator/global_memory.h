// Atomics, flags between blocks, asynchronous copies, cached loads.
#pragma once
#pragma GCC system_header

namespace scanops_emulator __attribute__((visibility("hidden"))) {

void before_poll(int line);
void after_poll(const void* flag, unsigned long long value);
void maybe_give_way(unsigned one_in);
void note_change();

// A poll gives way, so that the thread that sets the flag can run. With a seed it sometimes reads at once.
template <class Word>
[[gnu::noinline, maybe_unused]] Word poll(const Word* flag, int line) {
    before_poll(line);
    const Word value = *static_cast<const volatile Word*>(flag);
    after_poll(flag, value);
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

void copy_async(void* target, const void* source, unsigned bytes, int line);
void commit_copies();
void land_copies(unsigned groups_in_flight);

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

[[maybe_unused]] static inline unsigned atomicOr(unsigned* address, unsigned bits) {
    const unsigned old = *address;  // of shared memory: the threads of a block take turns
    *address = old | bits;
    return old;
}

__attribute__((visibility("hidden"))) unsigned long long nanoseconds();

// A word that holds both a value and the flag that says it is there needs no fence around it.
template <class Word>
[[maybe_unused]] static inline Word load_relaxed(const Word* word, int line = __builtin_LINE()) {
    asm volatile("" ::: "memory");
    const Word value = scanops_emulator::poll(word, line);
    asm volatile("" ::: "memory");
    return value;
}

[[maybe_unused]] static inline void wait_for_predecessors() {}  // a kernel begins when the one before it has ended

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

template <bool streams = false, class Item>
[[maybe_unused]] static inline void copy_async(Item* shared, const void* global, int line = __builtin_LINE()) {
    if constexpr (sizeof(Item) < 4)
        *shared = *static_cast<const Item*>(global);
    else
        scanops_emulator::copy_async(shared, global, sizeof(Item), line);
    asm volatile("" ::: "memory");
}

[[maybe_unused]] static inline void copy_async_commit() { scanops_emulator::commit_copies(); }

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
