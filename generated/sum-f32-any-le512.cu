// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-any-le512
//          up to 512 float32 items, float32 out
// plan     staged: threads 32, items 1, tiles 1, rows 512, lanes 32, piece 23, unroll 4
//          rows of up to 512 are contiguous: copied coalesced, scanned in shared memory
// target   sm_90
// content  sha256 6c434eeef2ad11e4 of everything below this banner
// again    scanops generate sum-f32-any-le512 --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef float Input;  // float32
typedef float Output;  // float32
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

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
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 1 items: as one vectorised access loads or stores them, and as states in scan order
struct alignas(1 * sizeof(Input)) InputVector {
    Input item[1];
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

__device__ __forceinline__ void store_items(Output* first, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    *reinterpret_cast<OutputVector*>(first) = y;
}

// ---- a warp's rows in shared memory, contiguous and in memory order
constexpr int room = 680;  // items

struct Staged {
    alignas(16) Input input[room + 16 / sizeof(Input)];  // overwritten by the output
};

struct alignas(16) Access {  // a 16-byte access
    unsigned word[4];
};

// Items between the preceding 16-byte boundary and the rows.
template <class Item>
__device__ __forceinline__ int phase(const Item* rows) {
    return (int)((unsigned long long)rows % 16 / sizeof(Item));
}

__device__ __forceinline__ void write_access(void* to, const void* from) {
    *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(from);
}

// A warp reads `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void read_rows(Item* staged, const Item* rows, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    const int begin = phase(rows), end = begin + count;
    rows -= begin;  // both sides start at the boundary
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (int i = first + lane * width; i < whole; i += stride) copy_async_16(staged + i, rows + i);
    if (lane >= begin && lane < first && lane < end) staged[lane] = rows[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) staged[last] = rows[last];
}

// A warp writes `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void write_rows(Item* rows, const Item* staged, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    const int begin = phase(rows), end = begin + count;
    rows -= begin;  // both sides start at the boundary
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (int i = first + lane * width; i < whole; i += stride) write_access(rows + i, staged + i);
    if (lane >= begin && lane < first && lane < end) rows[lane] = staged[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) rows[last] = staged[last];
}

__device__ __forceinline__ Items lift_items(const InputVector& x) {
    Items s;
    s.item[0] = element(x.item[0]);
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

// One lane scans the row.
__device__ __forceinline__ void scan_alone(const Input* x, Output* y, int length) {
    State before = identity();
#pragma unroll 4
    for (int i = 0; i < length; i += 1) {
        Items s = lift_items(load_input(x + i));
        const State prefix = before;
        before = combine(before, scan_items(s));
        store_items(y + i, prefix, s);
    }
}

// Each lane scans its piece; lanes scan the totals; each lane combines its piece with its prefix.
__device__ __forceinline__ void scan_row(const Input* x, Output* y, int part, int length, int piece) {
    const int rest = length - part * piece;  // items to the end of the row
    const int own = rest < piece ? rest : piece;
    Items s[23];
    State total = identity();
#pragma unroll
    for (int k = 0, i = 0; k < 23; ++k, i += 1) {
        if (i >= own) break;
        s[k] = lift_items(load_input(x + i));
        total = combine(total, scan_items(s[k]));
    }
    const State older = shuffle_up(scan_lanes(total, part), 1);
    State prefix = part > 0 ? older : identity();
#pragma unroll
    for (int k = 0, i = 0; k < 23; ++k, i += 1) {
        if (i >= own) break;
        store_items(y + i, prefix, s[k]);
        prefix = combine(prefix, s[k].item[0]);
    }
}

__global__ void __launch_bounds__(32)
scan_kernel(const Input* input, Output* output, long long lines, int length, int rows, int lane_bits, int piece) {
    // ---- a warp has `rows` rows, independent of other warps
    const int lane = threadIdx.x % 32;
    __shared__ Staged staged;
    const long long line = (long long)blockIdx.x * rows;
    const int count = (int)(lines - line < rows ? lines - line : rows) * length;
    input += line * length;
    output += line * length;

    // ---- copy the rows to shared memory
    read_rows(staged.input, input, count, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();

    // ---- 1, 2, 4 ... 32 lanes per row; items behind the last row are scanned as well, and not stored
    const int part = lane & ((1 << lane_bits) - 1);
    const int start = (lane >> lane_bits) * length + part * piece;
    const Input* x = staged.input + phase(input) + start;
    Output* y = staged.input + phase(output) + start;
    const int stride = (32 >> lane_bits) * length;  // from one row of a lane to its next
    for (int turn = 0; turn < rows >> (5 - lane_bits); ++turn) {
        if (lane_bits == 0)
            scan_alone(x, y, length);
        else
            scan_row(x, y, part, length, piece);
        x += stride;
        y += stride;
    }
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
    const int length = (int)arguments->length;
    int rows = 1;  // per warp
    while (2 * rows * length <= 680) rows *= 2;
    int lane_bits = 0;  // log2 of lanes per row: as many as fit without bank conflicts between lanes that start a row
    while (lane_bits < 5 && (32 >> lane_bits > rows || 2 << lane_bits < (length & -length))) ++lane_bits;
    const int piece = (length + (1 << lane_bits) - 1) >> lane_bits | 1;  // odd, so that neighbouring lanes start in different banks
    const long long blocks = (arguments->lines + rows - 1) / rows;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->lines, length, rows, lane_bits, piece));
}
#endif
