// Warp collectives: shuffles, votes, __syncwarp. Lanes may come at different times; the last one of the mask computes
// the results of all. Every lane of the mask must exist and must make the same call on the same line.
#pragma once
#pragma GCC system_header

#include "state.h"

namespace scanops_emulator __attribute__((visibility("hidden"))) {

using Word = unsigned long long;

// source: the lane whose value this lane gets.
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

void check_shuffle(Operation operation, int line, unsigned mask, unsigned argument, int width, unsigned source);

template <class Type>
[[gnu::always_inline, maybe_unused]] inline Type shuffle(Operation operation, int line, unsigned mask, Type value, unsigned argument, int width,
                              unsigned source) {
    static_assert(is_shuffle_type<Type>, "CUDA shuffles int, unsigned, long, long long, float and double");
    check_shuffle(operation, line, mask, argument, width, source);
    Word word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    asm volatile("" ::: "memory");
    word = collective(operation, line, mask, word, source);
    asm volatile("" ::: "memory");
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

[[maybe_unused]] inline unsigned vote(Operation operation, int line, unsigned mask, int predicate) {
    asm volatile("" ::: "memory");
    const Word result = collective(operation, line, mask, predicate != 0, 0);
    asm volatile("" ::: "memory");
    return static_cast<unsigned>(result);
}

}  // namespace scanops_emulator

// Source lanes as PTX's shfl.sync defines them; a source outside the segment leaves the lane its own value. xor may
// reach an earlier segment, never a later one.
template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_sync(unsigned mask, Type value, int source_lane, int width = 32,
                                                int line = __builtin_LINE()) {
    const unsigned lane = scanops_emulator::current->lane, inside = static_cast<unsigned>(width) - 1;
    const unsigned source = ((lane & ~inside) | (static_cast<unsigned>(source_lane) & inside)) & 31;
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle, line, mask, value,
                                     static_cast<unsigned>(source_lane), width, source);
}

template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_up_sync(unsigned mask, Type value, unsigned delta, int width = 32,
                                                   int line = __builtin_LINE()) {
    const unsigned lane = scanops_emulator::current->lane, inside = static_cast<unsigned>(width) - 1;
    const unsigned source = (lane & inside) >= delta ? lane - delta : lane;
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle_up, line, mask, value, delta, width, source);
}

template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_down_sync(unsigned mask, Type value, unsigned delta, int width = 32,
                                                     int line = __builtin_LINE()) {
    const unsigned lane = scanops_emulator::current->lane, inside = static_cast<unsigned>(width) - 1;
    const unsigned source = delta <= inside - (lane & inside) ? lane + delta : lane;
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle_down, line, mask, value, delta, width,
                                     source & 31);
}

template <class Type>
[[gnu::always_inline, maybe_unused]] static inline Type __shfl_xor_sync(unsigned mask, Type value, int lane_mask, int width = 32,
                                                    int line = __builtin_LINE()) {
    const unsigned lane = scanops_emulator::current->lane, inside = static_cast<unsigned>(width) - 1;
    const unsigned partner = lane ^ static_cast<unsigned>(lane_mask);
    const unsigned source = partner <= (lane | inside) ? partner : lane;
    return scanops_emulator::shuffle(scanops_emulator::Operation::shuffle_xor, line, mask, value,
                                     static_cast<unsigned>(lane_mask), width, source & 31);
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
