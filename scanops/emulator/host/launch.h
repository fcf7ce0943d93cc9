// The grid loop. Launches of one library run one at a time.
#pragma once

#include <pthread.h>

#include "../launch.h"
#include "schedule.h"

// pthread_atfork without the part of it that a library would be linked with, as the Linux Standard Base specifies it.
extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* library) noexcept;
extern "C" __attribute__((visibility("hidden"))) void* __dso_handle;

namespace scanops_emulator {
namespace {

pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER;
thread_local cudaError_t last_error;

void begin_fork() { pthread_mutex_lock(&launch_lock); }
void end_fork() { pthread_mutex_unlock(&launch_lock); }

// A fork waits for the launch under way: its child would find half of one, and the lock held by a thread it lacks.
__attribute__((constructor)) void outlive_forks() { __register_atfork(begin_fork, end_fork, end_fork, &__dso_handle); }

cudaError_t fail_launch(cudaError_t error) { return last_error = error; }

unsigned long long mix(unsigned long long seed) {
    seed += 0x9e3779b97f4a7c15u;
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebu;
    return (seed ^ (seed >> 31)) | 1;
}

bool legal(const dim3& blocks, const dim3& threads) {
    const unsigned long long total = 1ull * threads.x * threads.y * threads.z;
    return threads.x <= 1024 && threads.y <= 1024 && threads.z <= 64 && total >= 1 && total <= block_threads &&
           blocks.x >= 1 && blocks.x <= 0x7fffffffu && blocks.y >= 1 && blocks.y <= 65535 && blocks.z >= 1 &&
           blocks.z <= 65535;
}

void lay_out_block(Block& block, const dim3& threads) {
    block.threads = threads.x * threads.y * threads.z;
    block.warp_count = (block.threads + warp_lanes - 1) / warp_lanes;
    for (unsigned number = 0; number < block.warp_count; ++number) {
        Warp& warp = block.warp[number];
        warp.block = &block;
        warp.threads = block.thread + number * warp_lanes;
        warp.number = number;
    }
    for (unsigned number = 0; number < block.threads; ++number) {
        Thread& thread = block.thread[number];
        thread.index = {number % threads.x, number / threads.x % threads.y, number / threads.x / threads.y};
        thread.lane = number % warp_lanes;
        thread.warp = block.warp + number / warp_lanes;
    }
}

void close_blocks() {
    if (grid.blocks == nullptr) return;
    for (unsigned place = 0; place < grid.resident; ++place) {
        Block& block = grid.blocks[place];
        for (unsigned number = 0; number < block.threads; ++number) free(block.thread[number].copies.items);
        free(block.shared);
    }
    free(grid.blocks);
    grid.blocks = nullptr;
}

bool open_blocks(const dim3& threads) {
    // calloc: only the warps and threads that a launch has are ever touched.
    grid.blocks = static_cast<Block*>(calloc(grid.resident, sizeof(Block)));
    if (grid.blocks == nullptr) return false;
    for (unsigned place = 0; place < grid.resident; ++place) {
        grid.blocks[place].shared = static_cast<char*>(malloc(shared_bytes() + 1));
        if (grid.blocks[place].shared == nullptr) return false;
        lay_out_block(grid.blocks[place], threads);
    }
    return true;
}

// A fiber ends the launch by a jump here: with 1 after a report, with 2 when the last thread has left.
[[gnu::noinline]] bool run_to_end() {
    const int ending = _setjmp(grid.home);
    if (ending != 0) return ending == 2;
    for (unsigned place = 0; place < grid.resident; ++place) start_block(grid.blocks[place]);
    current = &grid.blocks[0].thread[0];  // only its block matters: in order, the search begins there
    Thread* first = choose_thread(grid.random != 0);
    set_current(first);
    first->fiber = take_fiber();
    enter_fiber(first->fiber);
}

cudaError_t run_locked(const Launch& launch) {
    gridDim = launch.grid;
    blockDim = launch.block;
    grid.launch = &launch;
    grid.block_count = 1ull * gridDim.x * gridDim.y * gridDim.z;
    grid.started = 0;
    grid.active = 0;
    grid.resident = static_cast<unsigned>(settings.resident_blocks);
    if (grid.resident > grid.block_count) grid.resident = static_cast<unsigned>(grid.block_count);
    grid.random = settings.seed == 0 ? 0 : mix(settings.seed);
    grid.rotation = 0;
    grid.descending = false;
    note_change();
    loaded_block = nullptr;
    report_length = 0;
    if (!open_blocks(blockDim)) {
        close_blocks();
        return cudaErrorMemoryAllocation;
    }
    open_stacks();
    grid.running = true;
    const bool finished = run_to_end();
    grid.running = false;
    close_stacks();
    close_blocks();
    return finished ? cudaSuccess : cudaErrorAssert;
}

}  // namespace

cudaError_t run_grid(const Launch& launch) {
    if (!legal(launch.grid, launch.block)) return fail_launch(cudaErrorInvalidConfiguration);
    // A launch asks for whole units of 16 bytes.
    if (launch.shared_bytes > (shared_bytes() + 15) / 16 * 16) return fail_launch(cudaErrorInvalidValue);
    pthread_mutex_lock(&launch_lock);
    const cudaError_t error = run_locked(launch);
    pthread_mutex_unlock(&launch_lock);
    return error == cudaSuccess ? error : fail_launch(error);
}

}  // namespace scanops_emulator

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument: more dynamic shared memory than the kernel declares";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument: grid or block dimensions";
        case cudaErrorAssert: return scanops_emulator::report_text;
    }
    return "unrecognized error code";
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = scanops_emulator::last_error;
    scanops_emulator::last_error = cudaSuccess;
    return error;
}

// seed 0: threads in order, fastest; any other: a random schedule, the same for the same seed. resident_blocks: how
// many blocks are in flight together, 1 to 64. Both hold from the next launch on.
extern "C" __attribute__((visibility("default"), used)) void scanops_emulator_configure(unsigned long long seed,
                                                                                      int resident_blocks) {
    pthread_mutex_lock(&scanops_emulator::launch_lock);
    scanops_emulator::settings.seed = seed;
    scanops_emulator::settings.resident_blocks =
        resident_blocks < 1 ? 1 : resident_blocks > 64 ? 64 : resident_blocks;
    pthread_mutex_unlock(&scanops_emulator::launch_lock);
}
