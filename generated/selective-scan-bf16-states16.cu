// scanops: y[i] = g[i] * y[i-1] + x[i]
//
// spec     linear-bf16-any-by8-states16-map_d0257f1b512da380ca3c-rows-saves
//          up to 2147483648, a multiple of 8, bfloat16 items, rows, saves, bfloat16 out
// plan     states: threads 256, items 8, tiles 0, lanes 4, blocks 2, group 16
//          16 states of a line in the registers of 4 threads, 4 each
// numbers  rule: states
// target   sm_90
// content  sha256 39a8bff0b2f909eb of everything below this banner
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
inline constexpr int kBlocksPerSm = 2;  // resident blocks per multiprocessor
inline constexpr int kLanes = 4;  // threads per line
inline constexpr int kBlockLines = 64;  // lines per block
inline constexpr int kThreadStates = 4;  // states per thread
inline constexpr bool kWhole = true;  // all threads have as many states
inline constexpr int kTileSteps = 32;  // steps of a tile
inline constexpr int kItems = 8;  // items of a thread in a tile, of each operand with an item a step
inline constexpr int kAccess = 8;  // items of a run in memory, which is aligned
inline constexpr bool kAlongLines = false;  // runs go along neighbouring lines, not along steps
inline constexpr int kGroupSteps = 16;  // steps whose sums the lanes of a line exchange together
inline constexpr int kRunSteps = 4;  // steps whose values one load from shared memory brings
inline constexpr int kBuffers = 2;  // tiles of what all lines read in shared memory
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
struct Outputs {
    unsigned short v0;
};

__device__ __forceinline__ Once prepare_once(Further2 x2) {
    return {(x2 * 1.442695f)};
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

__device__ __forceinline__ Outputs finish(const Sums& sums, Input x, Further5 x5, Further6 x6) {
    return {float_to_bfloat((((sums.v0 + (x5 * bfloat_to_float(x))) * bfloat_to_float(x6)) * reciprocal_of(1 + exp2_of(bfloat_to_float(x6) * -1.44269504f))))};
}

struct Shared {
    alignas(16) float step0[kTileValues];
    alignas(16) float step1[kTileValues];
    alignas(16) float tile0[kBuffers][kTileSteps][kTilePitch];
    alignas(16) float tile1[kBuffers][kTileSteps][kTilePitch];

    alignas(16) Value sum0[kTileValues];
};
static_assert((sizeof(Shared) + 15) / 16 * 16 == 37888, "shared memory as planned");

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

// ---- the kernel

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
linear_bf16_any_by8_states16_map_d0257f1b512da380ca3c_rows_saves_states(const __grid_constant__ Operand<const Input> input,
    const __grid_constant__ Operand<const Further1> further1,
    const __grid_constant__ Operand<const Further2> further2,
    const __grid_constant__ Operand<const Further3> further3,
    const __grid_constant__ Operand<const Further4> further4,
    const __grid_constant__ Operand<const Further5> further5,
    const __grid_constant__ Operand<const Further6> further6,
    const __grid_constant__ Operand<const Further7> further7,
    const __grid_constant__ Operand<unsigned short> result0,
    Carry* saved,
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
    Value h[kThreadStates];
    #pragma unroll
    for (int n = 0; n < kThreadStates; ++n) h[n] = 0;
    unsigned short* const y0_at = begin_of(result0, place);

    // ---- the first tile
    Input x_items[kItems];
    Further1 x1_items[kItems];
    Further6 x6_items[kItems];
    Further3 x3_loads[kTileLoads];
    Further4 x4_loads[kTileLoads];
    {
        const Position from = place.begin;
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
    int buffer = 0;
    for (Position begin = place.begin; begin < place.end; begin += kTileSteps, buffer = (buffer + 1) % kBuffers) {
        const int steps = (int)min(place.end - begin, (Position)kTileSteps);

        // ---- a tile into shared memory
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

        // ---- the next tile is on its way while this one is scanned
        Input x_kept[kItems];
        Further6 x6_kept[kItems];
#pragma unroll
        for (int k = 0; k < kItems; ++k) {
            x_kept[k] = x_items[k];
            x6_kept[k] = x6_items[k];
        }
        if (begin + kTileSteps < place.end) {
            {
                const Position from = begin + kTileSteps;
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
        }

        // ---- the scan: states in registers; sums over the lanes of a line for several steps at once
        if ((begin - place.begin) % kSaveSteps == 0 && line < place.lines) {
            const Position count = (sizes.length + kSaveSteps - 1) / kSaveSteps;
            Carry* to = saved + state_at(sizes, place, count, begin / kSaveSteps, line, first_state);
#pragma unroll
            for (int n = 0; n < kThreadStates; ++n)
                if (kWhole || first_state + n < kStates) to[n] = h[n];
        }
        if (steps == kTileSteps) {
#pragma unroll 1
            for (int s = 0; s < kTileSteps; s += kGroupSteps) {
                Value sum0[kGroupSteps];
#pragma unroll
                for (int q = 0; q < kGroupSteps; q += kRunSteps) {
                    float step0[kRunSteps];
                    take_steps(step0, shared.step0, line, s + q);
                    float step1[kRunSteps];
                    take_steps(step1, shared.step1, line, s + q);
#pragma unroll
                    for (int r = 0; r < kRunSteps; ++r) {
                        [[maybe_unused]] const Sums part = scan_step(h, once, Step{step0[r], step1[r]}, shared, buffer, s + q + r, first_state);
                        sum0[q + r] = part.v0;
                    }
                }
                sum_lanes(sum0);
#pragma unroll
                for (int i = 0; i < kGroupSteps / kLanes; ++i)
                    shared.sum0[value_at(line, s + lane * (kGroupSteps / kLanes) + i)] = sum0[i];
            }
        } else {
            for (int s = 0; s < steps; ++s) {
                const Step step = {shared.step0[value_at(line, s)], shared.step1[value_at(line, s)]};
                [[maybe_unused]] const Sums part = scan_step(h, once, step, shared, buffer, s, first_state);
                const Value sum0 = sum_line(part.v0);
                if (lane == 0) shared.sum0[value_at(line, s)] = sum0;
            }
        }
        synchronize_items();

        // ---- results of the sums
        Value sum0[kItems];
        take_items(sum0, shared.sum0);
        unsigned short y0[kItems];
#pragma unroll
        for (int k = 0; k < kItems; ++k) {
            const Outputs made = finish(Sums{sum0[k]}, x_kept[k], x5_lines[k % kItemLines], x6_kept[k]);
            y0[k] = made.v0;
        }
        store_items<true>(y0, y0_at + begin * result0.step, result0.line, result0.step, place.lines, steps);
        if constexpr (kBuffers == 1) __syncthreads();  // before the next tile is written where this one was read
    }
}

#ifndef __CUDACC_RTC__  // host side
extern "C" int scanops_abi() { return 6; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

// Queue the kernel: cuLaunchKernel for the kernel of this library. Returns 0 or a cudaError_t.
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    cudaError_t error =
        cudaFuncSetAttribute(linear_bf16_any_by8_states16_map_d0257f1b512da380ca3c_rows_saves_states,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(linear_bf16_any_by8_states16_map_d0257f1b512da380ca3c_rows_saves_states,
            blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: the next unrelated CUDA call shall not report it
    return error;
}
#endif
