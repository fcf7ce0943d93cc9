// A barrier waits for every thread the block started with.
#pragma once

#include "../barriers.h"
#include "schedule.h"

namespace scanops_emulator {

void barrier(int line) {
    Block& block = *current->warp->block;
    if (block.live != block.threads)
        SCANOPS_FAIL(line, "__syncthreads waits for %u thread%s of the block that left the kernel before it",
                     block.threads - block.live, block.threads - block.live == 1 ? "" : "s");
    if (block.waiting == 0) {
        block.barrier_line = line;
        block.barrier_first = current;
    } else if (block.barrier_line != line) {
        const uint3 first = block.barrier_first->index;
        SCANOPS_FAIL(line, "threads of the block are at different barriers: this one in __syncthreads at line %d, "
                     "thread (%u,%u,%u) and %u more at line %d", line, first.x, first.y, first.z, block.waiting - 1,
                     block.barrier_line);
    }
    wait_for(Operation::barrier, line, 0);
    if (++block.waiting != block.threads) {
        run_thread(choose_thread());
        return;
    }
    block.waiting = 0;
    note_event();
    for (unsigned number = 0; number < block.warp_count; ++number)
        make_ready(block.warp[number], block.warp[number].present);
    if (grid.random != 0) {
        run_thread(choose_thread());
        return;
    }
    // In order, the last to arrive goes on.
    take_ready(*current->warp, 1u << current->lane);
}

}  // namespace scanops_emulator
