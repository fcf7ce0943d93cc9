// Items of a tile: which ones a thread loads, prepares and stores, and how they pass through shared memory.
#pragma once

#include "headers/states/place.cuh"

inline constexpr int kMostAccessBytes = 16;  // of a load or store of a thread

// Consecutive items as one access.
template <class Item, int count>
struct alignas(count * sizeof(Item)) Run {
    Item item[count];
};

__device__ constexpr int run_of(int count, int bytes) {  // items of the widest access that divides a run of them
    int items = 1;
    while (count % (2 * items) == 0 && 2 * items * bytes <= kMostAccessBytes) items *= 2;
    return items;
}

// Copy items that begin on a boundary of their widest access.
template <int count, class Item>
__device__ __forceinline__ void copy_run(Item* to, const Item* from) {
    constexpr int kRun = run_of(count, (int)sizeof(Item));
#pragma unroll
    for (int i = 0; i < count; i += kRun)
        *reinterpret_cast<Run<Item, kRun>*>(to + i) = *reinterpret_cast<const Run<Item, kRun>*>(from + i);
}

template <int count, class Item>
__device__ __forceinline__ void load_run(Item (&to)[count], const Item* from) {
    constexpr int kRun = run_of(count, (int)sizeof(Item));
#pragma unroll
    for (int i = 0; i < count; i += kRun) {
        const Run<Item, kRun> run = *reinterpret_cast<const Run<Item, kRun>*>(from + i);
#pragma unroll
        for (int j = 0; j < kRun; ++j) to[i + j] = run.item[j];
    }
}

// ---- the items of a thread: runs of kAccess along the steps of its line, or along neighbouring lines

inline constexpr int kLineRuns = kBlockLines / kAccess;  // runs of neighbouring lines of a block
inline constexpr int kItemLines = kAlongLines ? kAccess : 1;  // lines of a thread's items

__device__ __forceinline__ int item_line(int k) {
    return kAlongLines ? (int)threadIdx.x % kLineRuns * kAccess + k % kAccess : (int)threadIdx.x / kLanes;
}

__device__ __forceinline__ int item_step(int k) {
    return kAlongLines ? (int)threadIdx.x / kLineRuns + k / kAccess * (kBlockThreads / kLineRuns)
                       : (int)threadIdx.x % kLanes * kAccess + k / kAccess * (kLanes * kAccess) + k % kAccess;
}

// Load this thread's items of a tile of so many lines and steps. In the place of lines and steps that do not exist, the
// last ones are read. `runs`: the items of a run are contiguous in memory, and begin on a boundary of an access; then
// the lines or steps along them are a multiple of a run.
template <bool runs, class Item>
__device__ __forceinline__ void load_items(Item (&items)[kItems], const Item* tile, Position line_stride,
                                           Position step_stride, int lines, int steps) {
#pragma unroll
    for (int k = 0; k < kItems; k += kAccess) {
        const int line = item_line(k), step = item_step(k);
        if constexpr (runs && kAccess > 1) {
            constexpr bool kBackwards = kReverse && !kAlongLines;
            const int near = min(line, lines - kItemLines), soon = min(step, steps - kAccess / kItemLines);
            Item run[kAccess];
            load_run<kAccess>(run, tile + near * line_stride + (soon + (kBackwards ? kAccess - 1 : 0)) * step_stride);
#pragma unroll
            for (int j = 0; j < kAccess; ++j) items[k + j] = run[kBackwards ? kAccess - 1 - j : j];
        } else {
#pragma unroll
            for (int j = 0; j < kAccess; ++j) {
                const int at = min(item_line(k + j), lines - 1), when = min(item_step(k + j), steps - 1);
                items[k + j] = tile[at * line_stride + when * step_stride];
            }
        }
    }
}

template <bool runs, class Item>
__device__ __forceinline__ void store_items(const Item (&items)[kItems], Item* tile, Position line_stride,
                                            Position step_stride, int lines, int steps) {
#pragma unroll
    for (int k = 0; k < kItems; k += kAccess) {
        const int line = item_line(k), step = item_step(k);
        if constexpr (runs && kAccess > 1) {
            constexpr bool kBackwards = kReverse && !kAlongLines;
            constexpr int kRun = run_of(kAccess, (int)sizeof(Item));
            if (line < lines && step < steps) {
                Item* to = tile + line * line_stride + (step + (kBackwards ? kAccess - 1 : 0)) * step_stride;
#pragma unroll
                for (int j = 0; j < kAccess; j += kRun) {
                    Run<Item, kRun> run;
#pragma unroll
                    for (int i = 0; i < kRun; ++i) run.item[i] = items[k + (kBackwards ? kAccess - 1 - j - i : j + i)];
                    *reinterpret_cast<Run<Item, kRun>*>(to + j) = run;
                }
            }
        } else {
#pragma unroll
            for (int j = 0; j < kAccess; ++j) {
                const int at = item_line(k + j), when = item_step(k + j);
                if (at < lines && when < steps) tile[at * line_stride + when * step_stride] = items[k + j];
            }
        }
    }
}

// ---- values of a tile in shared memory, one for each step of each line. Whoever writes or reads runs does so at a
// 16-byte boundary: runs of steps, or of lines where these are neighbours in memory.

inline constexpr int kStepPitch = kTileSteps + 4;
inline constexpr int kTileValues = kAlongLines ? kTileSteps * kBlockLines : kBlockLines * kStepPitch;

__device__ __forceinline__ int value_at(int line, int step) {
    return kAlongLines ? step * kBlockLines + line : line * kStepPitch + step;
}

// Write a thread's values of its items.
template <class Item>
__device__ __forceinline__ void put_items(Item* values, const Item (&items)[kItems]) {
    constexpr int kRun = run_of(kAccess, (int)sizeof(Item));
#pragma unroll
    for (int k = 0; k < kItems; k += kRun) {
        Run<Item, kRun> run;
#pragma unroll
        for (int j = 0; j < kRun; ++j) run.item[j] = items[k + j];
        *reinterpret_cast<Run<Item, kRun>*>(values + value_at(item_line(k), item_step(k))) = run;
    }
}

template <class Item>
__device__ __forceinline__ void take_items(Item (&items)[kItems], const Item* values) {
    constexpr int kRun = run_of(kAccess, (int)sizeof(Item));
#pragma unroll
    for (int k = 0; k < kItems; k += kRun) {
        const auto run = *reinterpret_cast<const Run<Item, kRun>*>(values + value_at(item_line(k), item_step(k)));
#pragma unroll
        for (int j = 0; j < kRun; ++j) items[k + j] = run.item[j];
    }
}

// Read the values of one line at several steps, the first of them a multiple of `count`.
template <int count, class Item>
__device__ __forceinline__ void take_steps(Item (&to)[count], const Item* values, int line, int step) {
    if constexpr (kAlongLines) {
#pragma unroll
        for (int i = 0; i < count; ++i) to[i] = values[value_at(line, step + i)];
    } else {
        load_run<count>(to, values + value_at(line, step));
    }
}

// ---- barriers: where a thread's items are of its own line, a warp shares them; else the block does

__device__ __forceinline__ void synchronize_items() {
    if constexpr (kAlongLines)
        __syncthreads();
    else
        __syncwarp();
}

// ---- sums over the items of lines

// Add up what threads have of the same lines and write it, `scratch` being shared memory of a tile's values.
template <class Number>
__device__ __forceinline__ void sum_item_lines(const Number (&numbers)[kItemLines], Number* scratch, Number* to,
                                               Position line_stride, int lines) {
    constexpr int kRows = kAlongLines ? kBlockThreads / kLineRuns : kLanes;  // threads with items of one line
    const int row = kAlongLines ? (int)threadIdx.x / kLineRuns : (int)threadIdx.x % kLanes;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kItemLines; ++j) scratch[row * kBlockLines + item_line(j)] = numbers[j];
    __syncthreads();
    for (int line = threadIdx.x; line < lines; line += kBlockThreads) {
        Number sum = 0;
        for (int each = 0; each < kRows; ++each) sum += scratch[each * kBlockLines + line];
        to[line * line_stride] = sum;
    }
}
