// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-bf16-n2048-mask_b8-reverse-unaligned
//          2048 bfloat16 items, the bool mask selects, reverse, unaligned, bfloat16 out
// plan     block: threads 96, items 8, tiles 1, vectors 3, boundary 64, alone False
//          a row of 2048 fits in the registers of one block: one tile, no loop
// target   sm_90
// content  sha256 c8fd1ce586e75d1c of everything below this banner
// again    scanops generate sum-bf16-n2048-mask_b8-reverse-unaligned --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef unsigned char Mask;  // bool
typedef unsigned short Output;  // bfloat16
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: block
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 2048;  // of a line, in items
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 96;  // of a block
constexpr int kWarps = 3;  // of a block
constexpr int kLanes = 32;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 8;  // of an access
constexpr int kVectors = 3;  // accesses of a thread
constexpr int kRun = 8;  // consecutive items that a thread scans serially
constexpr int kRuns = 3;  // of a thread
constexpr int kOutItems = 8;  // of a store
constexpr int stripe = 256;  // items of one access of all lanes of a row
constexpr int kWarpItems = 768;  // of a warp in a tile
constexpr int kBoundary = 64;  // items; accesses of misaligned rows stay on multiples of this
static_assert(kThreads % 32 == 0, "blocks of whole warps");

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

__device__ __forceinline__ unsigned short float_to_bfloat(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x, Mask m) {
    return m ? lift(bfloat_to_float(x)) : identity();
}

__device__ __forceinline__ Output output_of(State state) { return float_to_bfloat(state); }

// ---- accesses hold items in memory order, Items hold states in scan order
struct alignas(kItems * sizeof(Input)) InputVector {
    Input item[kItems];
};
struct alignas(kItems * sizeof(Mask)) MaskVector {
    Mask item[kItems];
};
static_assert((kItems & (kItems - 1)) == 0 && sizeof(InputVector) <= 16, "an access is one instruction");
struct alignas(kOutItems * sizeof(Output)) OutputVector {
    Output item[kOutItems];
};
struct Items {
    State item[kRun];
};

// Where an access of `items` items holds its item `k` in scan order.
__device__ __forceinline__ constexpr int place_of(int k, int items) { return kReverse ? items - 1 - k : k; }

// Offset in memory to an item so many items further in scan order.
__device__ __forceinline__ constexpr Position along(Position items) { return kReverse ? -items : items; }

// Lowest index in memory of `items` items from a scan position.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// States of consecutive items.
__device__ __forceinline__ Items lift_items(const InputVector& x, const MaskVector& m) {
    Items s;
#pragma unroll
    for (int k = 0; k < kRun; ++k)
        s.item[k] = element(x.item[place_of(k, kItems)], m.item[place_of(k, kItems)]);
    return s;
}

// ---- misaligned rows: accesses stay on boundaries, and overlap both ends of a row
__device__ __forceinline__ bool is_inside(Position position, Position length) {
    return (unsigned long long)position < (unsigned long long)length;
}

__device__ __forceinline__ bool is_whole(Position position, int items, Position length) {
    return position >= 0 && position <= length - items;
}

// Items from the boundary before a row to its first item in scan order.
__device__ __forceinline__ int lead_of(long long line, const Output* output, Position length) {
    const long long row = (line + kReverse) * length + (long long)((size_t)output / sizeof(Output));
    return (int)((kReverse ? -row : row) & (kBoundary - 1));
}

// Items before the row's first are ignored.
__device__ __forceinline__ void begin_row(Items& s, Position position) {
#pragma unroll
    for (int k = 0; k < kItems; ++k)
        if (position < -k) s.item[k] = identity();
}

__device__ __forceinline__ InputVector load_input(const Input* first, Position position, Position length) {
    if (is_whole(position, kItems, length)) return *reinterpret_cast<const InputVector*>(first);
    InputVector vector = {};
#pragma unroll
    for (int k = 0; k < kItems; ++k)
        if (is_inside(position + place_of(k, kItems), length)) vector.item[k] = first[k];
    return vector;
}

__device__ __forceinline__ MaskVector load_mask(const Mask* first, Position position, Position length) {
    if (is_whole(position, kItems, length)) return *reinterpret_cast<const MaskVector*>(first);
    MaskVector vector = {};
#pragma unroll
    for (int k = 0; k < kItems; ++k)
        if (is_inside(position + place_of(k, kItems), length)) vector.item[k] = first[k];
    return vector;
}

// Items from the boundary of an access that precedes an address in scan order.
template <class Item>
__device__ __forceinline__ int skew_of(const Item* first) {
    const int items = (int)((size_t)first / sizeof(Item));
    return (kReverse ? -items : items) & (kItems - 1);
}

// The 32-bit words of an access in scan order.
template <class Vector, int count = (sizeof(Vector) + 3) / 4>
__device__ __forceinline__ void to_words(unsigned* words, const Vector& access) {
    unsigned memory[count] = {};
    memcpy(memory, &access, sizeof(Vector));
#pragma unroll
    for (int k = 0; k < count; ++k) words[k] = memory[place_of(k, count)];
}

// The access after a lane's own is the next lane's; the first lane holds `later`, the last lane's.
template <class Vector, int count = (sizeof(Vector) + 3) / 4>
__device__ __forceinline__ Vector next_lane(const Vector& own, const Vector& later, int lane, int lanes = kLanes) {
    constexpr int last_words = sizeof(Vector) / kItems / 4;  // of the last item, which no shift brings in
    unsigned words[count] = {}, later_words[count] = {};
    memcpy(words, &own, sizeof(Vector));
    memcpy(later_words, &later, sizeof(Vector));
#pragma unroll
    for (int k = kReverse ? last_words : 0; k < (kReverse ? count : count - last_words); ++k)
        words[k] = __shfl_sync(0xffffffffu, lane > 0 ? words[k] : later_words[k], lane + 1, lanes);
    Vector next;
    memcpy(&next, words, sizeof(Vector));
    return next;
}

// The items of one output access: those of `access` from the skew on, then the first of `next`.
template <class Vector, int count = (sizeof(Vector) + 3) / 4>
__device__ __forceinline__ Vector realign(const Vector& access, const Vector& next, int skew) {
    constexpr int bytes = sizeof(Vector), item_bytes = bytes / kItems;
    const int shift = 8 * item_bytes * skew;  // bits
    unsigned words[2 * count];
    to_words(words, access);
    to_words(words + count, next);
#pragma unroll
    for (int distance = count / 2; distance > 0 && 4 * distance >= item_bytes; distance /= 2)  // words
        if (shift & 32 * distance) {
#pragma unroll
            for (int k = 0; k < count + distance; ++k) words[k] = words[k + distance];
        }
    unsigned memory[count];
#pragma unroll
    for (int k = 0; k < count; ++k) {
        unsigned& word = memory[place_of(k, count)];
        if constexpr (bytes < 4)  // both accesses in one word
            word = kReverse ? (words[0] << 8 * bytes | words[1]) >> (8 * bytes - shift)
                            : (words[0] | words[1] << 8 * bytes) >> shift;
        else if constexpr (item_bytes < 4)
            word = kReverse ? __funnelshift_l(words[k + 1], words[k], shift)
                            : __funnelshift_r(words[k], words[k + 1], shift);
        else
            word = words[k];
    }
    Vector result;
    memcpy(&result, memory, bytes);
    return result;
}

template <class Item, class Vector>
__device__ __forceinline__ void store_vector(Item* first, const Vector& y, Position position, Position length) {
    if (!is_whole(position, kOutItems, length)) {
#pragma unroll
        for (int k = 0; k < kOutItems; ++k)
            if (is_inside(position + place_of(k, kOutItems), length)) first[k] = y.item[k];
        return;
    }
    *reinterpret_cast<Vector*>(first) = y;
}

// Inclusive scan of consecutive items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
#pragma unroll
    for (int k = 1; k < kRun; ++k) {
        s.item[k] = combine(s.item[k - 1], s.item[k]);
    }
    return s.item[kRun - 1];
}

// Results of consecutive items, given the prefix before them.
__device__ __forceinline__ void make_results(OutputVector& y, State prefix, const Items& s) {
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
        y.item[place_of(k, kItems)] = output_of(combine(prefix, s.item[k]));
    }
}

// ---- lanes of a row
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, kLanes);
}

// Inclusive scan across the first `count` lanes.
template <int count = kLanes>
__device__ __forceinline__ State scan_lanes(State s, int lane) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const State older = shuffle_up(s, step);
        if (lane >= step) s = combine(older, s);
    }
    return s;
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, kLanes);
}

// The exclusive prefix of this lane's access, given that of the row's accesses; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane, int last = kLanes - 1) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = lane > 0 ? combine(before, older) : before;
    before = combine(before, shuffle(inclusive, last));
    return prefix;
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warps_before(State totals, int warp) {
    const State older = shuffle(totals, warp > 0 ? warp - 1 : 0);
    return warp > 0 ? older : identity();
}

__global__ void __launch_bounds__(kThreads)
scan_kernel(const Input* input, const Mask* mask, Output* output) {
    __shared__ State warp_total[kWarps];

    // ---- one row per block; a warp holds `kVectors` stripes of it
    constexpr int warps = kWarps, warp_items = kWarpItems;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const long long line = blockIdx.x;
    const int lead = lead_of(line, output, length);
    // scan position of this thread's first item
    const Position first = warp * warp_items + lane * kItems - lead;
    const Input* input_at = input + line * length + memory_index(first, kItems, length);
    const int x_skew = skew_of(input_at);
    input_at -= along(x_skew);
    const Mask* mask_at = mask + line * length + memory_index(first, kItems, length);
    const int m_skew = skew_of(mask_at);
    mask_at -= along(m_skew);
    Output* const output_at = output + line * length + memory_index(first, kItems, length);

    // ---- load
    const int x_reads = kVectors + (lane == 0 && x_skew > 0);
    InputVector x[kVectors + 1];
#pragma unroll
    for (int n = 0; n < kVectors + 1; ++n) {
        const int j = kReverse ? kVectors + 1 - 1 - n : n;
        x[j] = j < x_reads ? load_input(input_at + along(j * stripe), first - x_skew + j * stripe, length) : InputVector{};
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
        x[j] = realign(x[j], next_lane(x[j], x[j + 1], lane), x_skew);

    const int m_reads = kVectors + (lane == 0 && m_skew > 0);
    MaskVector m[kVectors + 1];
#pragma unroll
    for (int n = 0; n < kVectors + 1; ++n) {
        const int j = kReverse ? kVectors + 1 - 1 - n : n;
        m[j] = j < m_reads ? load_mask(mask_at + along(j * stripe), first - m_skew + j * stripe, length) : MaskVector{};
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
        m[j] = realign(m[j], next_lane(m[j], m[j + 1], lane), m_skew);

    // ---- scan the items in their thread, then across the lanes
    Items s[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        s[j] = lift_items(x[j], m[j]);
    begin_row(s[0], first);
    State p[kRuns];
    State t[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) t[j] = scan_lanes(scan_items(s[j]), lane);
    State before = identity();
#pragma unroll
    for (int j = 0; j < kRuns; ++j)
        p[j] = chain_lanes(before, t[j], lane);

    // ---- totals of the warps
    if (lane == 31) warp_total[warp] = before;
    __syncthreads();
    const State totals = scan_lanes<kWarps>(lane < warps ? warp_total[lane] : identity(), lane);
    const State prefix = warps_before(totals, warp);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) p[j] = combine(prefix, p[j]);

    // ---- store
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
        const int j = kReverse ? kVectors - 1 - n : n;
        OutputVector y;
        make_results(y, p[j], s[j]);
        store_vector(output_at + along(j * stripe), y, first + j * stripe, length);
    }
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
constexpr int kRows = 1;  // of a block
struct ScanArguments {
    const void* input;
    const void* mask;
    const void* gate;
    const void* starts;  // head flags of segments
    void* output;
    void* indices;
    const void* carry_in;
    void* carry_out;
    const void* offsets;  // where segments begin
    void* workspace;
    long long carry_in_step;  // items from the carry-in of a line to that of the next
    long long segments;
    long long lines;   // scanned sequences
    long long length;  // items in a line, for kernels that take it
    int multiprocessors;
};

extern "C" int scanops_abi() { return 3; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

extern "C" long long scanops_workspace_bytes(long long, long long) { return 0; }

// Clear the error so that the next unrelated CUDA call does not report it.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = (arguments->lines + kRows - 1) / kRows;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(kThreads);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output));
}
#endif
