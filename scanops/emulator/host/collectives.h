// What a warp collective does when a lane comes to it.
#pragma once

#include "../collectives.h"
#include "schedule.h"

namespace scanops_emulator {
namespace {

const char* name_of(Operation operation) { return operation_name[static_cast<int>(operation)]; }

[[gnu::always_inline]] inline void check_mask(Operation operation, int line, unsigned mask) {
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
[[gnu::always_inline]] inline Call& join_call(Operation operation, int line, unsigned mask) {
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

void finish_call(Warp& warp, Call& call) {
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

}  // namespace

Word collective(Operation operation, int line, unsigned mask, Word value, unsigned source) {
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

namespace {

// PTX's shfl.sync: a source outside the segment of `width` lanes leaves the lane its own value. xor may reach an
// earlier segment, never a later one.
unsigned shuffle_source(Operation operation, unsigned argument, int width) {
    const unsigned lane = current->lane, inside = static_cast<unsigned>(width) - 1;
    switch (operation) {
        case Operation::shuffle: return ((lane & ~inside) | (argument & inside)) & 31;
        case Operation::shuffle_up: return (lane & inside) >= argument ? lane - argument : lane;
        case Operation::shuffle_down: return (argument <= inside - (lane & inside) ? lane + argument : lane) & 31;
        default: return ((lane ^ argument) <= (lane | inside) ? lane ^ argument : lane) & 31;
    }
}

}  // namespace

Word shuffle_word(Operation operation, int line, unsigned mask, Word value, unsigned argument, int width) {
    if (width < 1 || width > 32 || (width & (width - 1)) != 0)
        SCANOPS_FAIL(line, "%s: the width %d is not a power of two from 1 to 32", name_of(operation), width);
    if (operation != Operation::shuffle && argument > 31)
        SCANOPS_FAIL(line, "%s: the distance %u is not in 0..31, and the hardware would use its low five bits",
                     name_of(operation), argument);
    const unsigned source = shuffle_source(operation, argument, width);
    if ((mask >> source & 1) == 0 && (mask >> current->lane & 1) != 0)
        SCANOPS_FAIL(line, "%s: lane %u reads lane %u, which the mask 0x%08x does not name", name_of(operation),
                     current->lane, source, mask);
    return collective(operation, line, mask, value, source);
}

}  // namespace scanops_emulator
