// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-i32-n100-mask_b8-reverse
//          100 int32 items, the bool mask selects, reverse, int64 out
// plan     staged: threads 32, items 2, tiles 1, rows 4, lanes 8, piece 14, unroll 7
//          4 rows of 100 are contiguous: copied coalesced, scanned in shared memory
// target   sm_90
// content  sha256 8fec063ae80e6bad of everything below this banner
// again    scanops generate sum-i32-n100-mask_b8-reverse --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef int Input;  // int32
typedef unsigned char Mask;  // bool
typedef long long Output;  // int64
typedef unsigned long long Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

// ---- the plan: staged
typedef int Position;  // holds any position in a line, one tile past its end included
constexpr Position length = 100;  // of a line, in items
constexpr bool kReverse = true;  // scan from the last item to the first
constexpr int kThreads = 32;  // of a block
constexpr int kLanes = 8;  // neighbouring threads of a warp that scan a row
constexpr int kItems = 2;  // of an access
constexpr int kRun = 2;  // consecutive items that a thread scans serially
constexpr int kOutItems = 2;  // of a store
constexpr int kAccesses = 7;  // of a lane to its piece of a row
constexpr int kRoom = 400;  // items of a warp's rows in shared memory
constexpr int rows = 4;  // of a warp
constexpr int piece = 14;  // items of a lane
static_assert(kThreads % 32 == 0, "blocks of whole warps");

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
// Asynchronous global-to-shared copy of 16 bytes (cp.async).
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
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

__device__ __forceinline__ State lift(Value x) {
    return x;
}

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x, Mask m) {
    return m ? lift((unsigned long long)((long long)(x))) : identity();
}

__device__ __forceinline__ Output result(State state) { return (long long)(state); }

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

// ---- a warp's rows in shared memory, contiguous and in memory order
struct Staged {
    alignas(16) Input input[kRoom];
    alignas(16) Mask mask[kRoom];
    alignas(16) Output output[kRoom];
};

struct alignas(16) Access {  // a 16-byte access
    unsigned word[4];
};

struct Row {  // a lane's part of a row in shared memory
    const Input* x;
    const Mask* m;
    Output* y;
};

__device__ __forceinline__ void write_access(void* to, const void* from) {
    *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(from);
}

// A warp reads `count` items: 16-byte accesses, and single items at both ends.
template <class Item>
__device__ __forceinline__ void read_rows(Item* staged, const Item* rows, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = 32 * width;
    int i = lane * width;
    if (count == kRoom) {
#pragma unroll 8
        for (int step = 0; step < kRoom / stride; ++step, i += stride)
            copy_async_16(staged + i, rows + i);
        if (i < kRoom) copy_async_16(staged + i, rows + i);
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
    if (count == kRoom) {
#pragma unroll 8
        for (int step = 0; step < kRoom / stride; ++step, i += stride)
            write_access(rows + i, staged + i);
        if (i < kRoom) write_access(rows + i, staged + i);
        return;
    }
    const int whole = count / width * width;
    for (; i < whole; i += stride) write_access(rows + i, staged + i);
    if (whole + lane < count) rows[whole + lane] = staged[whole + lane];
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
        y.item[place_of(k, kItems)] = result(combine(prefix, s.item[k]));
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

__device__ __forceinline__ Items read_items(const Row& row, int i) {
    return lift_items(*reinterpret_cast<const InputVector*>(row.x + along(i)), *reinterpret_cast<const MaskVector*>(row.m + along(i)));
}

__device__ __forceinline__ void write_items(const Row& row, int i, State prefix, const Items& s) {
    OutputVector y;
    make_results(y, prefix, s);
    *reinterpret_cast<OutputVector*>(row.y + along(i)) = y;
}

// Each lane scans its piece; lanes scan the totals; each lane combines its piece with its prefix.
__device__ __forceinline__ void scan_row(Row row, Position length, int part, int piece) {
    const int rest = length - part * piece;  // items to the end of the row
    const int own = rest < piece ? rest : piece;
    Items s[kAccesses];
    State total = identity();
#pragma unroll
    for (int k = 0; k < kAccesses; ++k) {
        if (k * kItems >= own) continue;
        s[k] = read_items(row, k * kItems);
        total = combine(total, scan_items(s[k]));
    }
    const State older = shuffle_up(scan_lanes(total, part), 1);
    State prefix = part > 0 ? older : identity();
#pragma unroll
    for (int k = 0; k < kAccesses; ++k) {
        if (k * kItems >= own) continue;
        write_items(row, k * kItems, prefix, s[k]);
        prefix = combine(prefix, s[k].item[kItems - 1]);
    }
}

__global__ void __launch_bounds__(kThreads)
scan_kernel(const Input* input, const Mask* mask, Output* output, long long lines) {
    // ---- a warp has `rows` rows, independent of other warps
    const int lane = threadIdx.x % 32;
    __shared__ Staged staged;
    const long long line = (long long)blockIdx.x * rows;
    const int count = (int)(lines - line < rows ? lines - line : rows) * length;
    input += line * length;
    mask += line * length;
    output += line * length;

    // ---- copy the rows to shared memory
    read_rows(staged.input, input, count, lane);
    read_rows(staged.mask, mask, count, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();

    // ---- scan some rows at once, by a power of two of lanes each; items past the last row are scanned, not stored
    constexpr int at_once = 32 / kLanes, turns = rows / at_once;
    const int part = lane % kLanes, own_row = lane / kLanes;
    const int start = own_row * length + memory_index(part * piece, kItems, length);
    Row row = {
        staged.input + start,
        staged.mask + start,
        staged.output + start,
    };
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
        scan_row(row, length, part, piece);
        row.x += at_once * length;
        row.m += at_once * length;
        row.y += at_once * length;
    }
    __syncwarp();

    // ---- copy the results out
    write_rows(output, staged.output, count, lane);
}

#ifndef __CUDACC_RTC__  // host side: a plain C interface, the same for every kernel
constexpr int kWarps = 1;  // of a block
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
    const long long blocks = (arguments->lines + kWarps * rows - 1) / (kWarps * rows);
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(kThreads);
    config.stream = (cudaStream_t)stream;
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output, arguments->lines));
}
#endif
