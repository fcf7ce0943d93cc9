// Warp collectives: shuffles, votes, __syncwarp. Lanes may come at different times; the last one of the mask computes
// the results of all. Every lane of the mask must exist and must make the same call on the same line.
#pragma once
#pragma GCC system_header

#include "schedule.h"

namespace scanops_emulator {
namespace {

using Word = unsigned long long;

[[maybe_unused]] const char* name_of(Operation operation) { return operation_name[static_cast<int>(operation)]; }

[[gnu::always_inline, maybe_unused]] inline void check_mask(Operation operation, int line, unsigned mask) {
    const Warp& warp = *current->warp;
    if ((mask >> current->lane & 1) == 0)
        SCANOPS_FAIL(line, "%s, lane %u: the mask 0x%08x does not name the calling lane", name_of(operation),
                     current->lane, mask);
    if ((mask & ~warp.present) != 0) {
        SCANOPS_FAIL(line, "%s, lane %u: the mask 0x%08x names lanes that are absent (%s): lowest is lane %d",
                     name_of(operation), current->lane, mask,
                     warp.threads + warp_lanes > warp.block->thread + warp.block->threads
                         ? "they left the kernel or the block has no such thread" : "they left the kernel",
                     __builtin_ctz(mask & ~warp.present));
    }
}

// The open call that the running lane joins, or a new one. Two calls that wait for a lane of each other never end.
[[gnu::always_inline, maybe_unused]] inline Call& join_call(Operation operation, int line, unsigned mask) {
    Warp& warp = *current->warp;
    const unsigned bit = 1u << current->lane;
    for (unsigned number = 0; number < warp.open_calls; ++number) {
        Call& call = warp.calls[number];
        if (call.operation == operation && call.line == line && call.mask == mask) return call;
        if ((call.mask & bit) == 0 || (call.arrived & mask) == 0) continue;
        SCANOPS_FAIL(line, "lanes of the warp are in different calls: lane %u in %s at line %d with mask 0x%08x, lane %d "
                     "in %s at line %d with mask 0x%08x", current->lane, name_of(operation), line, mask,
                     __builtin_ctz(call.arrived & mask), name_of(call.operation), call.line, call.mask);
    }
    Call& call = warp.calls[warp.open_calls++];
    call = {operation, line, mask, 0};
    return call;
}

[[maybe_unused]] void finish_call(Warp& warp, Call& call) {
    const unsigned mask = call.mask;
    Word ballot = 0;
    switch (call.operation) {
        case Operation::ballot:
        case Operation::any:
        case Operation::all:
            for (unsigned lane = 0; lane < warp_lanes; ++lane)
                if ((mask >> lane & 1) != 0) ballot |= warp.value[lane] << lane;
            if (call.operation == Operation::any) ballot = ballot != 0;
            if (call.operation == Operation::all) ballot = ballot == mask;
            for (unsigned lane = 0; lane < warp_lanes; ++lane)
                if ((mask >> lane & 1) != 0) warp.result[lane] = ballot;
            break;
        case Operation::syncwarp:
            break;
        default:
            if (mask == 0xffffffffu) {
                for (unsigned lane = 0; lane < warp_lanes; ++lane) warp.result[lane] = warp.value[warp.source[lane]];
                break;
            }
            for (unsigned lane = 0; lane < warp_lanes; ++lane)
                if ((mask >> lane & 1) != 0) warp.result[lane] = warp.value[warp.source[lane]];
    }
    call = warp.calls[--warp.open_calls];
    note_event();
}

// source: the lane whose value this lane gets.
[[gnu::noinline, maybe_unused]] Word collective(Operation operation, int line, unsigned mask, Word value,
                                                unsigned source) {
    check_mask(operation, line, mask);
    Warp& warp = *current->warp;
    const unsigned lane = current->lane;
    const unsigned bit = 1u << lane;
    warp.value[lane] = value;
    warp.source[lane] = source;
    Call& call = join_call(operation, line, mask);
    call.arrived |= bit;
    wait_for(operation, line, mask);
    if (call.arrived == mask) {
        finish_call(warp, call);
        make_ready(warp, mask & ~bit);
        maybe_give_way(64);
    } else {
        // A missing lane first: the warp's shared memory and state are warm, and the call ends soon.
        const unsigned missing = warp.ready & mask & ~call.arrived;
        run_thread(missing != 0 && !chance_of_one_in(64) ? take_ready(warp, missing) : choose_thread());
    }
    return warp.result[lane];
}

template <class Type> constexpr bool is_shuffle_type = false;
template <> constexpr bool is_shuffle_type<int> = true;
template <> constexpr bool is_shuffle_type<unsigned> = true;
template <> constexpr bool is_shuffle_type<long> = true;
template <> constexpr bool is_shuffle_type<unsigned long> = true;
template <> constexpr bool is_shuffle_type<long long> = true;
template <> constexpr bool is_shuffle_type<unsigned long long> = true;
template <> constexpr bool is_shuffle_type<float> = true;
template <> constexpr bool is_shuffle_type<double> = true;

[[maybe_unused]] void check_shuffle(Operation operation, int line, unsigned mask, unsigned argument, int width,
                                    unsigned source) {
    if (width < 1 || width > 32 || (width & (width - 1)) != 0)
        SCANOPS_FAIL(line, "%s: the width %d is not a power of two from 1 to 32", name_of(operation), width);
    if (operation != Operation::shuffle && argument > 31)
        SCANOPS_FAIL(line, "%s: the distance %u is not in 0..31, and the hardware would use its low five bits",
                     name_of(operation), argument);
    if ((mask >> source & 1) == 0 && (mask >> current->lane & 1) != 0)
        SCANOPS_FAIL(line, "%s: lane %u reads lane %u, which the mask 0x%08x does not name", name_of(operation),
                     current->lane, source, mask);
}

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

[[maybe_unused]] unsigned vote(Operation operation, int line, unsigned mask, int predicate) {
    asm volatile("" ::: "memory");
    const Word result = collective(operation, line, mask, predicate != 0, 0);
    asm volatile("" ::: "memory");
    return static_cast<unsigned>(result);
}

}  // namespace
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
