// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n1024-inner1024
//          1024 float32 items of stride 1024, float32 out
// plan     columns: threads 512, items 8, tiles 2, columns 32, vector 4, apart False, stages 2, blocks 1
//          the scanned dimension has stride 1024: 32 neighbouring columns per block
// target   sm_90
// content  sha256 2dbec9e03905526e of everything below this banner
// again    scanops generate sum-f32-n1024-inner1024 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                                      \
    extern __shared__ __align__(16) unsigned char name##_bytes[];         \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)

// Asynchronous global-to-shared copies (cp.async).
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_8(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// copy_async_16 with L1 bypass (cp.async.cg).
__device__ __forceinline__ void copy_stream_16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 columns of a row, as one access reads or writes them; and 8 rows of them
struct alignas(16) InputVector {
    Input column[4];
};
struct InputRows {
    InputVector row[8];
};
struct alignas(16) OutputVector {
    Output column[4];
};
struct alignas(16) States {  // one per column
    State column[4];
};
struct Items {
    States row[8];
};
struct Ring {  // multistage ring of tiles, by stage, row and thread: a thread reads what it copied, so no barrier is needed
    InputVector x[2][8][512];
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    s.column[1] = identity();
    s.column[2] = identity();
    s.column[3] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    s.column[1] = combine(older.column[1], newer.column[1]);
    s.column[2] = combine(older.column[2], newer.column[2]);
    s.column[3] = combine(older.column[3], newer.column[3]);
    return s;
}

__device__ __forceinline__ InputRows load_input(const InputVector* slot) {
    InputRows rows;
    rows.row[0] = slot[0];
    rows.row[1] = slot[512];
    rows.row[2] = slot[1024];
    rows.row[3] = slot[1536];
    rows.row[4] = slot[2048];
    rows.row[5] = slot[2560];
    rows.row[6] = slot[3072];
    rows.row[7] = slot[3584];
    return rows;
}

__device__ __forceinline__ void copy_input(InputVector* slot, const Input* first, long long step) {
    copy_stream_16(slot, first);
    copy_stream_16(slot + 512, first + 1 * step);
    copy_stream_16(slot + 1024, first + 2 * step);
    copy_stream_16(slot + 1536, first + 3 * step);
    copy_stream_16(slot + 2048, first + 4 * step);
    copy_stream_16(slot + 2560, first + 5 * step);
    copy_stream_16(slot + 3072, first + 6 * step);
    copy_stream_16(slot + 3584, first + 7 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    y.column[2] = result(s.column[2]);
    y.column[3] = result(s.column[3]);
    return y;
}

__device__ __forceinline__ void store_items(Output* first, long long step, const States& prefix, const Items& s) {
    *reinterpret_cast<OutputVector*>(first) = results(combine_each(prefix, s.row[0]));
    *reinterpret_cast<OutputVector*>(first + 1 * step) = results(combine_each(prefix, s.row[1]));
    *reinterpret_cast<OutputVector*>(first + 2 * step) = results(combine_each(prefix, s.row[2]));
    *reinterpret_cast<OutputVector*>(first + 3 * step) = results(combine_each(prefix, s.row[3]));
    *reinterpret_cast<OutputVector*>(first + 4 * step) = results(combine_each(prefix, s.row[4]));
    *reinterpret_cast<OutputVector*>(first + 5 * step) = results(combine_each(prefix, s.row[5]));
    *reinterpret_cast<OutputVector*>(first + 6 * step) = results(combine_each(prefix, s.row[6]));
    *reinterpret_cast<OutputVector*>(first + 7 * step) = results(combine_each(prefix, s.row[7]));
}

__device__ __forceinline__ States lift_row(const InputVector& x) {
    States s;
    s.column[0] = element(x.column[0]);
    s.column[1] = element(x.column[1]);
    s.column[2] = element(x.column[2]);
    s.column[3] = element(x.column[3]);
    return s;
}

__device__ __forceinline__ Items lift_items(const InputRows& x) {
    Items s;
    s.row[0] = lift_row(x.row[0]);
    s.row[1] = lift_row(x.row[1]);
    s.row[2] = lift_row(x.row[2]);
    s.row[3] = lift_row(x.row[3]);
    s.row[4] = lift_row(x.row[4]);
    s.row[5] = lift_row(x.row[5]);
    s.row[6] = lift_row(x.row[6]);
    s.row[7] = lift_row(x.row[7]);
    return s;
}

// Inclusive scan of the rows in place; returns their totals.
__device__ __forceinline__ States scan_items(Items& s) {
    s.row[1] = combine_each(s.row[0], s.row[1]);
    s.row[2] = combine_each(s.row[1], s.row[2]);
    s.row[3] = combine_each(s.row[2], s.row[3]);
    s.row[4] = combine_each(s.row[3], s.row[4]);
    s.row[5] = combine_each(s.row[4], s.row[5]);
    s.row[6] = combine_each(s.row[5], s.row[6]);
    s.row[7] = combine_each(s.row[6], s.row[7]);
    return s.row[7];
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
}

__device__ __forceinline__ States shuffle_up_each(const States& s, int distance) {
    States other;
    other.column[0] = shuffle_up(s.column[0], distance);
    other.column[1] = shuffle_up(s.column[1], distance);
    other.column[2] = shuffle_up(s.column[2], distance);
    other.column[3] = shuffle_up(s.column[3], distance);
    return other;
}

// Inclusive scan across the slots of a warp, 2 steps.
__device__ __forceinline__ States scan_slots(States s, int lane) {
    States older;
    older = shuffle_up_each(s, 8);
    if (lane >= 8) s = combine_each(older, s);
    older = shuffle_up_each(s, 16);
    if (lane >= 16) s = combine_each(older, s);
    return s;
}

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, Output* output) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[2][16][8];  // by the parity of the tile

    // ---- a block scans 32 columns, 512 rows at a time; a thread takes 8 of these rows
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 8;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x / 32;
    const long long column = (long long)(blockIdx.x % 32) * 32 + place * 4;
    const int first = (int)(threadIdx.x / 8) * 8;  // the scan position of this thread's first row
    const Input* x = input + (outer * 1024 + first) * 1024 + column;
    Output* y = output + (outer * 1024 + first) * 1024 + column;

    // ---- prologue: issue the copies of 1 tiles before the first is scanned
    const auto copy_tile = [&](int tile) {
        if (tile < 2) {
            copy_input(&ring.x[tile % 2][0][threadIdx.x], x, 1024);
            x += 512LL * 1024;
        }
        copy_async_commit();
    };
    copy_tile(0);

    States carry = identities();  // carry from the tiles before this one
    for (int tile = 0; tile < 2; ++tile) {
        copy_tile(tile + 1);
        copy_async_wait<1>();
        Items s = lift_items(load_input(&ring.x[tile % 2][0][threadIdx.x]));

        // ---- scan the rows of the thread, then across the slots of the warp
        const States inclusive = scan_slots(scan_items(s), lane);
        const States older = shuffle_up_each(inclusive, 8);
        const States inside = lane >= 8 ? older : identities();

        // ---- combine the totals of the warps: each thread folds those of its columns
        if (lane >= 24) warp_total[tile % 2][warp][place] = inclusive;
        __syncthreads();
        States prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][0][place]);
        if (warp == 1) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][1][place]);
        if (warp == 2) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][2][place]);
        if (warp == 3) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][3][place]);
        if (warp == 4) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][4][place]);
        if (warp == 5) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][5][place]);
        if (warp == 6) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][6][place]);
        if (warp == 7) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][7][place]);
        if (warp == 8) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][8][place]);
        if (warp == 9) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][9][place]);
        if (warp == 10) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][10][place]);
        if (warp == 11) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][11][place]);
        if (warp == 12) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][12][place]);
        if (warp == 13) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][13][place]);
        if (warp == 14) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][14][place]);
        if (warp == 15) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][15][place]);
        prefix = combine_each(prefix, inside);

        // ---- store
        store_items(y, 1024, prefix, s);
        y += 512LL * 1024;
    }
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
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
    const long long blocks = arguments->lines / 1024 * 32;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 131072;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 131072);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
