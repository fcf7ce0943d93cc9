// Warp collectives: shuffles, votes, __syncwarp. Lanes may come at different times; the last one of the mask computes
// the results of all. Every lane of the mask must exist and must make the same call on the same line.
#pragma once
#pragma GCC system_header

namespace scanops_emulator __attribute__((visibility("hidden"))) {

using Word = unsigned long long;

enum class Operation : unsigned char {
    none, barrier, poll, shuffle, shuffle_up, shuffle_down, shuffle_xor, ballot, any, all, syncwarp
};

// Returns the word of the lane that this lane reads.
Word shuffle_word(Operation operation, int line, unsigned mask, Word value, unsigned argument, int width);

// Returns the result of a vote, and of __syncwarp 0.
Word collective(Operation operation, int line, unsigned mask, Word value, unsigned source);

template <class Type> inline constexpr bool is_shuffle_type = false;
template <> inline constexpr bool is_shuffle_type<int> = true;
template <> inline constexpr bool is_shuffle_type<unsigned> = true;
template <> inline constexpr bool is_shuffle_type<long> = true;
template <> inline constexpr bool is_shuffle_type<unsigned long> = true;
template <> inline constexpr bool is_shuffle_type<long long> = true;
template <> inline constexpr bool is_shuffle_type<unsigned long long> = true;
template <> inline constexpr bool is_shuffle_type<float> = true;
template <> inline constexpr bool is_shuffle_type<double> = true;

template <class Type>
[[gnu::always_inline, maybe_unused]] inline Type shuffle(Operation operation, int line, unsigned mask, Type value, unsigned argument,
                                                         int width) {
    static_assert(is_shuffle_type<Type>, "CUDA shuffles int, unsigned, long, long long, float and double");
    Word word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    asm volatile("" ::: "memory");
    word = shuffle_word(operation, line, mask, word, argument, width);
    asm volatile("" ::: "memory");
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

[[gnu::always_inline, maybe_unused]] inline unsigned vote(Operation operation, int line, unsigned mask, int predicate) {
    asm volatile("" ::: "memory");
    const Word result = collective(operation, line, mask, predicate != 0, 0);
    asm volatile("" ::: "memory");
    return static_cast<unsigned>(result);
}

}  // namespace scanops_emulator

template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_sync(unsigned mask, Type value, int source_lane, int width = 32,
                                                int line = __builtin_LINE()) {
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle, line, mask, value,
                                     static_cast<unsigned>(source_lane), width);
}

template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_up_sync(unsigned mask, Type value, unsigned delta, int width = 32,
                                                   int line = __builtin_LINE()) {
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle_up, line, mask, value, delta, width);
}

template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_down_sync(unsigned mask, Type value, unsigned delta, int width = 32,
                                                     int line = __builtin_LINE()) {
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle_down, line, mask, value, delta, width);
}

template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_xor_sync(unsigned mask, Type value, int lane_mask, int width = 32,
                                                    int line = __builtin_LINE()) {
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle_xor, line, mask, value,
                                     static_cast<unsigned>(lane_mask), width);
}

[[maybe_unused]] static inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return scanops_emulator::vote(scanops_emulator::Operation::ballot, line, mask, predicate);
}

[[maybe_unused]] static inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return static_cast<int>(scanops_emulator::vote(scanops_emulator::Operation::any, line, mask, predicate));
}

[[maybe_unused]] static inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return static_cast<int>(scanops_emulator::vote(scanops_emulator::Operation::all, line, mask, predicate));
}

[[maybe_unused]] static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    scanops_emulator::vote(scanops_emulator::Operation::syncwarp, line, mask, 0);
}
