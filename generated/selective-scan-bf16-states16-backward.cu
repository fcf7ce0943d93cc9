// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-bf16-any-by8-states16-grad_11111111-map_d0257f1b512da380ca3c-rows
//          up to 2147483648, a multiple of 8, bfloat16 items, rows, bfloat16 out
// plan     states: threads 256, items 8, tiles 0, lanes 4, blocks 1, group 16
//          16 states of a line in the registers of 4 threads, 4 each
// numbers  rule: states
// target   sm_90
// content  sha256 d8b905960508c75f of everything below this banner
// again    scanops.scan with the same map, then and tensors

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "headers/warp.cuh"

// ---- types
typedef unsigned short Input;  // bfloat16
typedef unsigned short Further1;  // bfloat16
typedef float Further2;  // float32
typedef unsigned short Further3;  // bfloat16
typedef unsigned short Further4;  // bfloat16
typedef float Further5;  // float32
typedef unsigned short Further6;  // bfloat16
typedef float Further7;  // float32
typedef float Value;  // accumulator
typedef float Carry;  // carry-in, carry-out and saved states

// ---- the plan: states
inline constexpr bool kReverse = false;  // scan from the last step to the first
inline constexpr int kStates = 16;  // states of a line
inline constexpr int kBlockThreads = 256;  // threads per block
inline constexpr int kBlocksPerSm = 1;  // resident blocks per multiprocessor
inline constexpr int kLanes = 4;  // threads per line
inline constexpr int kBlockLines = 64;  // lines per block
inline constexpr int kThreadStates = 4;  // states per thread
inline constexpr bool kWhole = true;  // all threads have as many states
inline constexpr int kTileSteps = 32;  // steps of a tile
inline constexpr int kItems = 8;  // items of a thread in a tile, of each operand with an item a step
inline constexpr int kAccess = 8;  // items of a run in memory, which is aligned
inline constexpr bool kAlongLines = false;  // runs go along neighbouring lines, not along steps
inline constexpr int kRunSteps = 4;  // steps whose values one load from shared memory brings
inline constexpr int kBuffers = 1;  // tiles of what all lines read in shared memory
inline constexpr int kTilePitch = 20;  // states of a step of these, and padding
inline constexpr int kTileLoads = 2;  // of these, items that a thread loads
inline constexpr bool kTileDivides = true;  // all threads load as many
inline constexpr bool kTileAlongSteps = true;  // their steps are contiguous in memory, not their states
inline constexpr int kSaveSteps = 32;  // steps between saved states
inline constexpr bool kBeginsEarly = true;  // the target has programmatic dependent launch
inline constexpr bool kConvertsBfloat = true;  // the target converts to bfloat16

#include "headers/half_types.cuh"
#include "headers/approximations.cuh"
#include "headers/pointwise.cuh"
#include "headers/dynamic_shared.cuh"
#include "headers/early_begin.cuh"
#include "headers/states/place.cuh"
#include "headers/states/items.cuh"
#include "headers/states/sums.cuh"

// ---- expressions
struct Once {  // values of a state of a line
    float v0;
    float v1;
};
struct Step {  // values of a step of a line, which its states share
    float v0;
    float v1;
};
struct Tile {  // values of a state at a step, which all lines of a block share
    float v0;
    float v1;
};
struct Full {  // operands of a state of a line at a step
};

struct Sums {  // sums over the states at a step of a line
    float v0;
};

__device__ __forceinline__ Once prepare_once(Further2 x2) {
    return {(x2 * 1.442695f), x2};
}
__device__ __forceinline__ Step prepare_step(Input x, Further1 x1, Further7 x7) {
    const float t2 = (bfloat_to_float(x1) + x7);
    const float t3 = short_softplus(t2);
    return {t3, (t3 * bfloat_to_float(x))};
}
__device__ __forceinline__ Tile prepare_tile(Further3 x3, Further4 x4) {
    return {bfloat_to_float(x3), bfloat_to_float(x4)};
}
__device__ __forceinline__ float gate_of(const Once& once, const Step& step) {
    return exp2_of((step.v0 * once.v0));
}

__device__ __forceinline__ float item_of(const Step& step, const Tile& tile) {
    return (step.v1 * tile.v0);
}

__device__ __forceinline__ float contribution0(Value h, const Tile& tile) {
    return (h * tile.v1);
}

typedef unsigned short Grad0;  // gradient of an output
constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
constexpr int kSaveTiles = kSaveSteps / kTileSteps;  // tiles from one saved state to the next
constexpr int kThreadTiles = 2 * kThreadStates;  // gradients of what all lines read, of a thread at a step

struct OnceGradients {
    float v1;
};
struct StepGradients {
    float v0;
    float v1;
};
struct TileGradients {
    float v0;
    float v1;
};
struct FullGradients {
};

struct ScanGradients {  // of the values that the scan reads of a state at a step
    OnceGradients once;
    StepGradients step;
    TileGradients tile;
    FullGradients full;
};
struct OnceOperands {
    Value x2;
};

struct StepOperands {
    Value x0;
    Value x1;
    Value x5;
    Value x6;
    Value x7;
};

struct TileOperands {
    Value x3;
    Value x4;
};

__device__ __forceinline__ Value reach_state(const Sums& dsums, const Tile& tile) {
    return (dsums.v0 * tile.v1);
}

__device__ __forceinline__ ScanGradients scan_gradients(Value g, Value before, Value passed, Value h, const Sums& dsums, const Once& once, const Step& step, const Tile& tile) {
    ScanGradients found;
    const float t17 = (passed * before);
    found.once.v1 = (t17 * step.v0);
    found.step.v0 = (t17 * once.v1);
    found.step.v1 = (g * tile.v0);
    found.tile.v0 = (g * step.v1);
    found.tile.v1 = (dsums.v0 * h);
    return found;
}

__device__ __forceinline__ Sums reach_sums([[maybe_unused]] const Sums& sums, [[maybe_unused]] Grad0 grad0, Further6 x6) {
    return {((bfloat_to_float(grad0) * reciprocal_of(1 + exp2_of(bfloat_to_float(x6) * -1.44269504f))) * bfloat_to_float(x6))};
}

__device__ __forceinline__ OnceOperands once_gradients([[maybe_unused]] const OnceGradients& donce) {
    return {donce.v1};
}

__device__ __forceinline__ StepOperands step_gradients([[maybe_unused]] const StepGradients& dstep, [[maybe_unused]] const Sums& sums, [[maybe_unused]] Grad0 grad0, Input x, Further1 x1, Further5 x5, Further6 x6, Further7 x7) {
    const float t5 = (sums.v0 + (x5 * bfloat_to_float(x)));
    const float t8 = reciprocal_of(1 + exp2_of(bfloat_to_float(x6) * -1.44269504f));
    const float t10 = (bfloat_to_float(grad0) * t8);
    const float t16 = (t10 * bfloat_to_float(x6));
    const float t24 = (bfloat_to_float(x1) + x7);
    const float t32 = ((dstep.v0 + (dstep.v1 * bfloat_to_float(x))) * reciprocal_of(1 + exp2_of(t24 * -1.44269504f)));
    return {((dstep.v1 * short_softplus(t24)) + (t16 * x5)), t32, (t16 * bfloat_to_float(x)), ((((bfloat_to_float(grad0) * (t5 * bfloat_to_float(x6))) * t8) * (1.0f - t8)) + (t10 * t5)), t32};
}

__device__ __forceinline__ TileOperands tile_gradients([[maybe_unused]] const TileGradients& dtile) {
    return {dtile.v0, dtile.v1};
}

struct Shared {
    alignas(16) float step0[kTileValues];
    alignas(16) float step1[kTileValues];
    alignas(16) float tile0[kBuffers][kTileSteps][kTilePitch];
    alignas(16) float tile1[kBuffers][kTileSteps][kTilePitch];

    alignas(16) Value reach0[kTileValues];
    alignas(16) Value sum0[kTileValues];
    alignas(16) Value states[kTileSteps + 1][kBlockThreads][kThreadStates];  // of each thread, before and after each step
    alignas(16) Value dtile[2][kBlockWarps][kTileSteps][kTilePitch];  // sums over the lines of a warp
};
static_assert((sizeof(Shared) + 15) / 16 * 16 == 218112, "shared memory as planned");

// Where this thread's share of a tile lies: items that all lines of a block read.
__device__ __forceinline__ int tile_step(int i) {
    const int at = threadIdx.x + i * kBlockThreads;
    return kTileAlongSteps ? at % kTileSteps : at / kStates;
}
__device__ __forceinline__ int tile_state(int i) {
    const int at = threadIdx.x + i * kBlockThreads;
    return kTileAlongSteps ? at / kTileSteps : at % kStates;
}

// Scan one step of this thread's states, and return what they add to the sums.
__device__ __forceinline__ Sums scan_step(Value (&h)[kThreadStates], const Once (&once)[kThreadStates], [[maybe_unused]] const Step& step,
                                          [[maybe_unused]] const Shared& shared, [[maybe_unused]] int buffer, [[maybe_unused]] int at, [[maybe_unused]] int first_state) {
    float tile0[kThreadStates];
    load_run(tile0, shared.tile0[buffer][at] + first_state);
    float tile1[kThreadStates];
    load_run(tile1, shared.tile1[buffer][at] + first_state);
    Sums sums = {};
#pragma unroll
    for (int n = 0; n < kThreadStates; ++n) {
        const Tile tile = Tile{tile0[n], tile1[n]};
        const Value gate = gate_of(once[n], step), item = item_of(step, tile);
        h[n] = gate * h[n] + item;
        const Value part0 = contribution0(h[n], tile);
        sums.v0 += kWhole || first_state + n < kStates ? part0 : 0;
    }
    return sums;
}

// Scan the gradient that reaches the states of a line against time, over the steps from `first` on, of which there are
// `count` or, if `whole`, kRunSteps; and with it the gradients of the values that the states are made of.
template <bool whole>
__device__ __forceinline__ void scan_back(Value (&carried)[kThreadStates], OnceGradients (&donce)[kThreadStates], const Once (&once)[kThreadStates],
                                          Shared& shared, [[maybe_unused]] const Place& place, int first, int count, int line, [[maybe_unused]] int lane, int first_state) {
    float step0[kRunSteps];
    take_steps(step0, shared.step0, line, first);
    float step1[kRunSteps];
    take_steps(step1, shared.step1, line, first);
    Value reach0[kRunSteps];
    take_steps(reach0, shared.reach0, line, first);
    Value dstep0[kRunSteps] = {};
    Value dstep1[kRunSteps] = {};
    Value h[kThreadStates], before[kThreadStates];
    load_run(before, shared.states[first + (whole ? kRunSteps : count)][threadIdx.x]);
#pragma unroll
    for (int r = kRunSteps - 1; r >= 0; --r) {
        if (!whole && r >= count) continue;
        const int at = first + r;
        const Step step = Step{step0[r], step1[r]};
        const Sums dsums = {reach0[r]};
        float tile0[kThreadStates];
        load_run(tile0, shared.tile0[0][at] + first_state);
        float tile1[kThreadStates];
        load_run(tile1, shared.tile1[0][at] + first_state);
        Value dtiles[kThreadTiles];
#pragma unroll
        for (int n = 0; n < kThreadStates; ++n) h[n] = before[n];
        load_run(before, shared.states[at][threadIdx.x]);
#pragma unroll
        for (int n = 0; n < kThreadStates; ++n) {
            const Tile tile = Tile{tile0[n], tile1[n]};
            [[maybe_unused]] const bool exists = kWhole || first_state + n < kStates;
            const Value gate = gate_of(once[n], step);
            const Value g = carried[n] + reach_state(dsums, tile);
            const Value previous = before[n];
            carried[n] = g * gate;
            const ScanGradients found = scan_gradients(g, previous, carried[n], h[n], dsums, once[n], step, tile);
            donce[n].v1 += found.once.v1;
            dstep0[r] += exists ? found.step.v0 : 0;
            dstep1[r] += exists ? found.step.v1 : 0;
            dtiles[0 * kThreadStates + n] = found.tile.v0;
            dtiles[1 * kThreadStates + n] = found.tile.v1;
        }
        sum_lines(dtiles);
        if (writes_kept<kLanes, kWarpThreads>(kThreadTiles)) {
#pragma unroll
            for (int i = 0; i < kept_of<kLanes, kWarpThreads>(kThreadTiles); ++i) {
                const int number = first_kept<kLanes, kWarpThreads>(kThreadTiles) + i;
                shared.dtile[number / kThreadStates][threadIdx.x / kWarpThreads][at][first_state + number % kThreadStates] = dtiles[i];
            }
        }
    }
    sum_lanes(dstep0);
    if (writes_kept<1, kLanes>(kRunSteps))
#pragma unroll
        for (int i = 0; i < kept_of<1, kLanes>(kRunSteps); ++i)
            shared.step0[value_at(line, first + first_kept<1, kLanes>(kRunSteps) + i)] = dstep0[i];
    sum_lanes(dstep1);
    if (writes_kept<1, kLanes>(kRunSteps))
#pragma unroll
        for (int i = 0; i < kept_of<1, kLanes>(kRunSteps); ++i)
            shared.step1[value_at(line, first + first_kept<1, kLanes>(kRunSteps) + i)] = dstep1[i];
}

// ---- the kernel

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
linear_bf16_any_by8_states16_grad_11111111_map_d0257f1b512da380ca3c_rows_states(const __grid_constant__ Operand<const Input> input,
    const __grid_constant__ Operand<const Further1> further1,
    const __grid_constant__ Operand<const Further2> further2,
    const __grid_constant__ Operand<const Further3> further3,
    const __grid_constant__ Operand<const Further4> further4,
    const __grid_constant__ Operand<const Further5> further5,
    const __grid_constant__ Operand<const Further6> further6,
    const __grid_constant__ Operand<const Further7> further7,
    const __grid_constant__ Operand<const Grad0> grad_output0,
    const __grid_constant__ Operand<float> result0,
    const __grid_constant__ Operand<unsigned short> result1,
    const __grid_constant__ Operand<unsigned short> result2,
    const __grid_constant__ Operand<float> result3,
    const __grid_constant__ Operand<unsigned short> result4,
    const __grid_constant__ Operand<float> result5,
    const __grid_constant__ Operand<float> result6,
    const __grid_constant__ Operand<float> result7,
    const Carry* saved,
    const __grid_constant__ Sizes sizes) {
    wait_for_predecessors();
    dynamic_shared(Shared, shared);
    const Place place = find_place(sizes);
    const int lane = threadIdx.x % kLanes, line = threadIdx.x / kLanes, first_state = lane * kThreadStates;
    const int near_line = min(line, place.lines - 1);  // of a line that exists, for loads

    // ---- what does not depend on the step
    const Input* const x_at = begin_of(input, place);
    const Further1* const x1_at = begin_of(further1, place);
    const Further2* const x2_at = begin_of(further2, place);
    const Further3* const x3_at = begin_of(further3, place);
    const Further4* const x4_at = begin_of(further4, place);
    const Further5* const x5_at = begin_of(further5, place);
    const Further6* const x6_at = begin_of(further6, place);
    const Further7* const x7_at = begin_of(further7, place);
    Once once[kThreadStates];
#pragma unroll
    for (int n = 0; n < kThreadStates; ++n) {
        [[maybe_unused]] const int state = kWhole ? first_state + n : min(first_state + n, kStates - 1);
        once[n] = prepare_once(x2_at[near_line * further2.line + state * further2.state]);
    }
    Further5 x5_lines[kItemLines];
    Further7 x7_lines[kItemLines];
#pragma unroll
    for (int j = 0; j < kItemLines; ++j) {
        const int at = min(item_line(j), place.lines - 1);
        x5_lines[j] = x5_at[at * further5.line];
        x7_lines[j] = x7_at[at * further7.line];
    }
    const Grad0* const grad0_at = begin_of(grad_output0, place);
    Value carried[kThreadStates];  // the gradient that reaches the states of the step before
#pragma unroll
    for (int n = 0; n < kThreadStates; ++n) carried[n] = 0;
    OnceGradients donce[kThreadStates] = {};
    Value line3[kItemLines] = {};
    Value line5[kItemLines] = {};

    const Position saved_count = (sizes.length + kSaveSteps - 1) / kSaveSteps;
    const Position tiles = (place.end - place.begin + kTileSteps - 1) / kTileSteps;
    Value h[kThreadStates];
    for (Position tile = tiles - 1; tile >= 0; --tile) {
        // ---- the states before the tile: saved ones, scanned over the tiles from there
        const Position begin = place.begin + tile * kTileSteps;
        const int steps = (int)min(place.end - begin, (Position)kTileSteps);
        const Value* from = saved + state_at(sizes, place, saved_count, begin / kSaveSteps, near_line, 0);
#pragma unroll
        for (int n = 0; n < kThreadStates; ++n) h[n] = from[kWhole ? first_state + n : min(first_state + n, kStates - 1)];
        Input x_items[kItems];
        Further1 x1_items[kItems];
        Further6 x6_items[kItems];
        Further3 x3_loads[kTileLoads];
        Further4 x4_loads[kTileLoads];
        if constexpr (kSaveTiles > 1) {
            for (Position earlier = begin / kSaveSteps * kSaveSteps; earlier < begin; earlier += kTileSteps) {
                {
                    const Position from = earlier;
                    const int count = (int)min(place.end - from, (Position)kTileSteps);
                    load_items<true>(x_items, x_at + from * input.step, input.line, input.step, place.lines, count);
                    load_items<true>(x1_items, x1_at + from * further1.step, further1.line, further1.step, place.lines, count);
#pragma unroll
                    for (int i = 0; i < kTileLoads; ++i) {
                        const int step = min(tile_step(i), count - 1), state = min(tile_state(i), kStates - 1);
                        x3_loads[i] = x3_at[(from + step) * further3.step + state * further3.state];
                        x4_loads[i] = x4_at[(from + step) * further4.step + state * further4.state];
                    }
                }
                constexpr int buffer = 0;
                {
                    float step0[kItems];
                    float step1[kItems];
#pragma unroll
                    for (int k = 0; k < kItems; ++k) {
                        const Step made = prepare_step(x_items[k], x1_items[k], x7_lines[k % kItemLines]);
                        step0[k] = made.v0;
                        step1[k] = made.v1;
                    }
                    put_items(shared.step0, step0);
                    put_items(shared.step1, step1);
                }
#pragma unroll
                for (int i = 0; i < kTileLoads; ++i) {
                    const Tile made = prepare_tile(x3_loads[i], x4_loads[i]);
                    if (kTileDivides || (tile_step(i) < kTileSteps && tile_state(i) < kStates)) {
                        shared.tile0[buffer][tile_step(i)][tile_state(i)] = made.v0;
                        shared.tile1[buffer][tile_step(i)][tile_state(i)] = made.v1;
                    }
                }
                __syncthreads();
#pragma unroll 1
                for (int s = 0; s < kTileSteps; s += kRunSteps) {
                    float step0[kRunSteps];
                    take_steps(step0, shared.step0, line, s);
                    float step1[kRunSteps];
                    take_steps(step1, shared.step1, line, s);
#pragma unroll
                    for (int r = 0; r < kRunSteps; ++r)
                        scan_step(h, once, Step{step0[r], step1[r]}, shared, 0, s + r, first_state);
                }
                __syncthreads();
            }
        }

        // ---- the tile into shared memory
        {
            const Position from = begin;
            const int count = (int)min(place.end - from, (Position)kTileSteps);
            load_items<true>(x_items, x_at + from * input.step, input.line, input.step, place.lines, count);
            load_items<true>(x1_items, x1_at + from * further1.step, further1.line, further1.step, place.lines, count);
            load_items<true>(x6_items, x6_at + from * further6.step, further6.line, further6.step, place.lines, count);
#pragma unroll
            for (int i = 0; i < kTileLoads; ++i) {
                const int step = min(tile_step(i), count - 1), state = min(tile_state(i), kStates - 1);
                x3_loads[i] = x3_at[(from + step) * further3.step + state * further3.state];
                x4_loads[i] = x4_at[(from + step) * further4.step + state * further4.state];
            }
        }
        Grad0 grad0_items[kItems];
        load_items<true>(grad0_items, grad0_at + begin * grad_output0.step, grad_output0.line, grad_output0.step, place.lines, steps);
        constexpr int buffer = 0;
        {
            float step0[kItems];
            float step1[kItems];
#pragma unroll
            for (int k = 0; k < kItems; ++k) {
                const Step made = prepare_step(x_items[k], x1_items[k], x7_lines[k % kItemLines]);
                step0[k] = made.v0;
                step1[k] = made.v1;
            }
            put_items(shared.step0, step0);
            put_items(shared.step1, step1);
        }
#pragma unroll
        for (int i = 0; i < kTileLoads; ++i) {
            const Tile made = prepare_tile(x3_loads[i], x4_loads[i]);
            if (kTileDivides || (tile_step(i) < kTileSteps && tile_state(i) < kStates)) {
                shared.tile0[buffer][tile_step(i)][tile_state(i)] = made.v0;
                shared.tile1[buffer][tile_step(i)][tile_state(i)] = made.v1;
            }
        }
        {
            Value reach0[kItems];
#pragma unroll
            for (int k = 0; k < kItems; ++k) {
                const Sums made = reach_sums(Sums{}, grad0_items[k], x6_items[k]);
                reach0[k] = item_line(k) < place.lines ? made.v0 : 0;
            }
            put_items(shared.reach0, reach0);
        }
        __syncthreads();

        // ---- the states of the tile, and sums over them where gradients read these
        copy_run<kThreadStates>(shared.states[0][threadIdx.x], h);
#pragma unroll 1
        for (int s = 0; s < steps; s += kRunSteps) {
            if (steps - s >= kRunSteps) {
                Value sum0[kRunSteps];
                float step0[kRunSteps];
                take_steps(step0, shared.step0, line, s);
                float step1[kRunSteps];
                take_steps(step1, shared.step1, line, s);
#pragma unroll
                for (int r = 0; r < kRunSteps; ++r) {
                    [[maybe_unused]] const Sums part = scan_step(h, once, Step{step0[r], step1[r]}, shared, buffer, s + r, first_state);
                    copy_run<kThreadStates>(shared.states[s + r + 1][threadIdx.x], h);
                    sum0[r] = part.v0;
                }
                sum_lanes(sum0);
                if (writes_kept<1, kLanes>(kRunSteps))
#pragma unroll
                    for (int i = 0; i < kept_of<1, kLanes>(kRunSteps); ++i)
                        shared.sum0[value_at(line, s + first_kept<1, kLanes>(kRunSteps) + i)] = sum0[i];
            } else {
                for (int at = s; at < steps; ++at) {
                    const Step step = {shared.step0[value_at(line, at)], shared.step1[value_at(line, at)]};
                    [[maybe_unused]] const Sums part = scan_step(h, once, step, shared, buffer, at, first_state);
                    copy_run<kThreadStates>(shared.states[at + 1][threadIdx.x], h);
                    const Value sum0 = sum_line(part.v0);
                    if (lane == 0) shared.sum0[value_at(line, at)] = sum0;
                }
            }
        }

        // ---- the gradient against time
#pragma unroll 1
        for (int s = (steps - 1) / kRunSteps * kRunSteps; s >= 0; s -= kRunSteps) {
            const int count = steps - s;
            if (count >= kRunSteps)
                scan_back<true>(carried, donce, once, shared, place, s, count, line, lane, first_state);
            else
                scan_back<false>(carried, donce, once, shared, place, s, count, line, lane, first_state);
        }
        __syncthreads();

        // ---- gradients of what all lines of the block have read: sums over its warps
#pragma unroll
        for (int i = 0; i < kTileLoads; ++i) {
            const int step = tile_step(i), state = tile_state(i);
            if (step < steps && state < kStates) {
                TileGradients dtile = {};
#pragma unroll
                for (int w = 0; w < kBlockWarps; ++w) {
                    dtile.v0 += shared.dtile[0][w][step][state];
                    dtile.v1 += shared.dtile[1][w][step][state];
                }
                const TileOperands made = tile_gradients(dtile);
                result6.data[place.group * result6.outer[0] + place.block_of_lines * result6.line + (begin + step) * result6.step + state * result6.state] = made.x3;
                result7.data[place.group * result7.outer[0] + place.block_of_lines * result7.line + (begin + step) * result7.step + state * result7.state] = made.x4;
            }
        }

        // ---- gradients of the operands of a step
        {
            Value dstep0[kItems];
            take_items(dstep0, shared.step0);
            Value dstep1[kItems];
            take_items(dstep1, shared.step1);
            Value sum0[kItems];
            take_items(sum0, shared.sum0);
            unsigned short made1[kItems];
            unsigned short made2[kItems];
            unsigned short made4[kItems];
#pragma unroll
            for (int k = 0; k < kItems; ++k) {
                const StepGradients dstep = {dstep0[k], dstep1[k]};
                [[maybe_unused]] const StepOperands made = step_gradients(dstep, Sums{sum0[k]}, grad0_items[k], x_items[k], x1_items[k], x5_lines[k % kItemLines], x6_items[k], x7_lines[k % kItemLines]);
                [[maybe_unused]] const bool exists = item_step(k) < steps;
                made1[k] = float_to_bfloat(made.x0);
                made2[k] = float_to_bfloat(made.x1);
                line3[k % kItemLines] += exists ? made.x5 : 0;
                made4[k] = float_to_bfloat(made.x6);
                line5[k % kItemLines] += exists ? made.x7 : 0;
            }
            store_items<true>(made1, begin_of(result1, place) + begin * result1.step, result1.line, result1.step, place.lines, steps);
            store_items<true>(made2, begin_of(result2, place) + begin * result2.step, result2.line, result2.step, place.lines, steps);
            store_items<true>(made4, begin_of(result4, place) + begin * result4.step, result4.line, result4.step, place.lines, steps);
        }
        __syncthreads();  // before the next tile is written where this one was read
    }

    // ---- sums over all steps
    if (line < place.lines) {
#pragma unroll
        for (int n = 0; n < kThreadStates; ++n) {
            const int state = first_state + n;
            if (kWhole || state < kStates) {
                const OnceOperands made = once_gradients(donce[n]);
                result0.data[place.group * result0.outer[0] + (place.first_line + line) * result0.line + state * result0.state] = made.x2;
            }
        }
    }
    sum_item_lines(line3, shared.reach0, result3.data + place.group * result3.outer[0] + place.first_line * result3.line, result3.line, place.lines);
    sum_item_lines(line5, shared.reach0, result5.data + place.group * result5.outer[0] + place.first_line * result5.line, result5.line, place.lines);
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    cudaError_t error =
        cudaFuncSetAttribute(linear_bf16_any_by8_states16_grad_11111111_map_d0257f1b512da380ca3c_rows_states,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(linear_bf16_any_by8_states16_grad_11111111_map_d0257f1b512da380ca3c_rows_states,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
