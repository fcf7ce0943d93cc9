// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n600-acc_compensated
//          600 float32 items, accumulated with compensation, float32 out
// plan     staged: threads 32, items 4, tiles 1, rows 1, lanes 32, piece 20, unroll 5
//          1 rows of 600 are contiguous: copied coalesced, scanned in shared memory
// target   sm_90
// content  sha256 609b750339d93e12 of everything below this banner
// again    scanops generate sum-f32-n600-acc_compensated --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
struct State {  // scan state of a contiguous range of items
    Value value;
    Value lost;
};

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
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

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ Value lost_by_sum(Value a, Value b) {  // the rounding error of a + b
    const Value sum = a + b, of_b = sum - a;
    return (a - (sum - of_b)) + (b - of_b);
}

__device__ __forceinline__ bool is_nan(Value x) { return x != x; }

__device__ __forceinline__ State identity() { return {0, 0}; }

__device__ __forceinline__ State lift(Value x) { return {x, 0}; }

__device__ __forceinline__ State combine(State older, State newer) {
    State s;
    s.value = older.value + newer.value;
    s.lost = older.lost + newer.lost + lost_by_sum(older.value, newer.value);
    return s;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return is_nan(state.lost) ? state.value : state.value + state.lost; }

// ---- 4 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(4 * sizeof(Input)) InputVector {
    Input item[4];
};
struct alignas(4 * sizeof(Output)) OutputVector {
    Output item[4];
};
struct Items {
    State item[4];
};

__device__ __forceinline__ InputVector load_input(const Input* first) {
    return *reinterpret_cast<const InputVector*>(first);
}

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    prefix = combine(prefix, s.item[0]);
    y.item[0] = result(prefix);
    prefix = combine(prefix, s.item[1]);
    y.item[1] = result(prefix);
    prefix = combine(prefix, s.item[2]);
    y.item[2] = result(prefix);
    prefix = combine(prefix, s.item[3]);
    y.item[3] = result(prefix);
    *reinterpret_cast<OutputVector*>(first) = y;
}

// ---- a warp's rows in shared memory, contiguous and in memory order
constexpr int room = 600;  // items

struct Staged {
    alignas(16) Input input[room];  // overwritten by the output
};

struct alignas(16) Access {  // a 16-byte access
    unsigned word[4];
};

__device__ __forceinline__ void write_access(void* to, const void* from) {
    *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(from);
}

// A warp reads `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void read_rows(Item* staged, const Item* rows, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    int i = lane * width;
    if (count == room) {
#pragma unroll 8
        for (int step = 0; step < room / stride; ++step, i += stride)
            copy_async_16(staged + i, rows + i);
        if (i < room) copy_async_16(staged + i, rows + i);
        return;
    }
    const int whole = count / width * width;
    for (; i < whole; i += stride) copy_async_16(staged + i, rows + i);
    if (whole + lane < count) staged[whole + lane] = rows[whole + lane];
}

// A warp writes `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void write_rows(Item* rows, const Item* staged, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    int i = lane * width;
    if (count == room) {
#pragma unroll 8
        for (int step = 0; step < room / stride; ++step, i += stride)
            write_access(rows + i, staged + i);
        if (i < room) write_access(rows + i, staged + i);
        return;
    }
    const int whole = count / width * width;
    for (; i < whole; i += stride) write_access(rows + i, staged + i);
    if (whole + lane < count) rows[whole + lane] = staged[whole + lane];
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
    s.item[1] = element(x.item[1]);
    s.item[2] = element(x.item[2]);
    s.item[3] = element(x.item[3]);
    return s;
}

// The total of the items.
__device__ __forceinline__ State scan_items(const Items& s) {
    State total = s.item[0];
    total = combine(total, s.item[1]);
    total = combine(total, s.item[2]);
    total = combine(total, s.item[3]);
    return total;
}

// ---- lanes, in groups of 32
__device__ __forceinline__ State shuffle_up(State s, int distance) {
    return {__shfl_up_sync(0xffffffffu, s.value, distance, 32), __shfl_up_sync(0xffffffffu, s.lost, distance, 32)};
}

__device__ __forceinline__ State shuffle(State s, int source) {
    return {__shfl_sync(0xffffffffu, s.value, source, 32), __shfl_sync(0xffffffffu, s.lost, source, 32)};
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

// Each lane reduces its piece; lanes scan the totals; each lane scans its piece from its prefix.
__device__ __forceinline__ void scan_row(const Input* x, Output* y, int part) {
    const int rest = 600 - part * 20;  // items to the end of the row
    const int own = rest < 20 ? rest : 20;
    State total = identity();
#pragma unroll 5
    for (int i = 0; i < own; i += 4) {
        Items s = lift_items(load_input(x + i));
        total = combine(total, scan_items(s));
    }
    const State older = shuffle_up(scan_lanes(total, part), 1);
    State before = part > 0 ? older : identity();
#pragma unroll 5
    for (int i = 0; i < own; i += 4) {
        Items s = lift_items(load_input(x + i));
        const State prefix = before;
        before = combine(before, scan_items(s));
        store_items(y + i, prefix, s);
    }
}

__global__ void __launch_bounds__(32)
scan_kernel(const Input* input, Output* output, long long lines) {
    // ---- a warp has 1 row(s), independent of other warps
    const int lane = threadIdx.x % 32;
    __shared__ Staged staged;
    const long long line = (long long)blockIdx.x * 1;
    const int count = (int)(lines - line < 1 ? lines - line : 1) * 600;
    input += line * 600;
    output += line * 600;

    // ---- copy the rows to shared memory
    read_rows(staged.input, input, count, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();

    // ---- 32 lane(s) per row; items behind the last row are scanned as well, and not stored
    const int part = lane % 32;
    const int start = lane / 32 * 600 + part * 20;
    const Input* const x = staged.input + start;
    Output* const y = staged.input + start;
    scan_row(x, y, part);
    __syncwarp();

    // ---- copy the results out
    write_rows(output, staged.input, count, lane);
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
    const long long blocks = (arguments->lines + 0) / 1;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines));
}
#endif
