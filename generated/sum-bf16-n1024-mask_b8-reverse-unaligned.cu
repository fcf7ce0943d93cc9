// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-bf16-n1024-mask_b8-reverse-unaligned
//          1024 bfloat16 items, the bool mask selects, reverse, unaligned, bfloat16 out
// plan     staged: threads 32, items 1, tiles 1, rows 1, lanes 32, piece 33, unroll 16
//          1 rows of 1024 are one stretch of memory: copied whole, scanned in shared memory
// target   sm_90
// content  sha256 017dd1c92d60761f of everything below this banner
// again    scanops generate sum-bf16-n1024-mask_b8-reverse-unaligned --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef unsigned char Mask;  // bool
typedef unsigned short Output;  // bfloat16
typedef float Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

#ifdef __CUDACC__  // on a CPU the emulator's cuda_runtime.h has these
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

__device__ __forceinline__ unsigned short float_to_bfloat(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Copies from global to shared memory that pass no register and that nothing waits for until it asks.
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

// Waits until at most `groups` of this thread's newest groups of copies are still under way.
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

// A masked-out element counts as the identity, whatever its value.
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift(bfloat_to_float(x)) : identity(); }

__device__ __forceinline__ Output result(State state) { return float_to_bfloat(state); }

// ---- 1 items: as one access reads or writes them, and as states in scan order
struct alignas(1 * sizeof(Input)) InputVector {
    Input item[1];
};
struct alignas(1 * sizeof(Mask)) MaskVector {
    Mask item[1];
};
struct alignas(1 * sizeof(Output)) OutputVector {
    Output item[1];
};
struct Items {
    State item[1];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ MaskVector load_mask(const Mask* first) {
    return *reinterpret_cast<const MaskVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

// ---- a warp's rows in shared memory, one after the other as they lie in memory
constexpr int room = 1024;  // items

struct Staged {
    alignas(16) Input input[room + 16 / sizeof(Input)];
    alignas(16) Mask mask[room + 16 / sizeof(Mask)];
    alignas(16) Output output[room + 16 / sizeof(Output)];
};

struct alignas(16) Access {  // the widest of a thread
    unsigned word[4];
};

// Items between the 16-byte boundary before the rows and the rows.
template <class Item>
__device__ __forceinline__ int phase(const Item* rows) {
    return (int)((unsigned long long)rows % 16 / sizeof(Item));
}

__device__ __forceinline__ void write_access(void* to, const void* from) {
    *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(from);
}

// A warp reads `count` items: whole accesses, and item by item what lies outside them.
template <class Item>
__device__ __forceinline__ void read_rows(Item* staged, const Item* rows, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    const int begin = phase(rows), end = begin + count;
    rows -= begin;  // to the boundary, where both sides begin
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (int i = first + lane * width; i < whole; i += stride) copy_async_16(staged + i, rows + i);
    if (lane >= begin && lane < first && lane < end) staged[lane] = rows[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) staged[last] = rows[last];
}

// And writes them.
template <class Item>
__device__ __forceinline__ void write_rows(Item* rows, const Item* staged, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    const int begin = phase(rows), end = begin + count;
    rows -= begin;  // to the boundary, where both sides begin
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (int i = first + lane * width; i < whole; i += stride) write_access(rows + i, staged + i);
    if (lane >= begin && lane < first && lane < end) rows[lane] = staged[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) rows[last] = staged[last];
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const MaskVector& m) {
    Items s;
    s.item[0] = element(x.item[0], m.item[0]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    return s.item[0];
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return __shfl_up_sync(0xffffffffu, s, distance, 32);
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return __shfl_sync(0xffffffffu, s, source, 32);
}

// Inclusive scan across lanes, 5 steps.
__device__ __forceinline__ State scan_lanes(State s, int lane) {
    State older;
    older = shuffle_up(s, 1);
    if (lane >= 1) s = combine(older, s);
    older = shuffle_up(s, 2);
    if (lane >= 2) s = combine(older, s);
    older = shuffle_up(s, 4);
    if (lane >= 4) s = combine(older, s);
    older = shuffle_up(s, 8);
    if (lane >= 8) s = combine(older, s);
    older = shuffle_up(s, 16);
    if (lane >= 16) s = combine(older, s);
    return s;
}

// Each lane finds the total of its piece, all exchange totals, each scans its piece behind what comes before it.
__device__ __forceinline__ void scan_row(const Input* x, const Mask* m, Output* y, int part) {
    const int rest = 1024 - part * 33;  // from here to the end of the row
    const int own = rest < 33 ? rest : 33;
    State total = identity();
#pragma unroll 16
    for (int i = 0; i < own; i += 1) {
        Items s = lift_items(load_input(x - i), load_mask(m - i));
        total = combine(total, scan_items(s));
    }
    const State older = shuffle_up(scan_lanes(total, part), 1);
    State before = part > 0 ? older : identity();
#pragma unroll 16
    for (int i = 0; i < own; i += 1) {
        Items s = lift_items(load_input(x - i), load_mask(m - i));
        const State prefix = before;
        before = combine(before, scan_items(s));
        store_items(y - i, prefix, s);
    }
}

__global__ void __launch_bounds__(32)
scan_kernel(const Input* input, const Mask* mask, Output* output, long long lines) {
    // ---- a warp has 1 row(s) and waits for no other
    const int lane = threadIdx.x % 32;
    __shared__ Staged staged;
    const long long line = (long long)blockIdx.x * 1;
    const int count = (int)(lines - line < 1 ? lines - line : 1) * 1024;
    input += line * 1024;
    mask += line * 1024;
    output += line * 1024;

    // ---- copy the rows in
    read_rows(staged.input, input, count, lane);
    read_rows(staged.mask, mask, count, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();

    // ---- a row is 32 lane(s); what lies behind the last row is scanned as well, and stays here
    const int part = lane % 32;
    const int start = lane / 32 * 1024 + 1023 - part * 33;
    const Input* const x = staged.input + phase(input) + start;
    const Mask* const m = staged.mask + phase(mask) + start;
    Output* const y = staged.output + phase(output) + start;
    scan_row(x, m, y, part);
    __syncwarp();

    // ---- copy the results out
    write_rows(output, staged.output, count, lane);
}

#ifndef __CUDACC_RTC__  // the host's side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    void* output;
    void* workspace;
    long long lines;   // scanned sequences
    long long length;  // of each: for kernels that take it
    int multiprocessors;
};

extern "C" int scanops_abi() { return 2; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

extern "C" long long scanops_workspace_bytes(long long, long long) { return 0; }

// An error is told once, to the caller: cleared here, it does not surface at somebody else's next call.
static int failed(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = (arguments->lines + 0) / 1;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output, arguments->lines));
}
#endif
