// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f32-n4096-inner4
//          4096 float32 items of stride 4, float32 out
// plan     columns: threads 256, items 17, tiles 1, columns 4, vector 4, apart False, stages 1, blocks 2
//          the scanned dimension has stride 4: 4 neighbouring columns per block
// target   sm_90
// content  sha256 32db219a1216f373 of everything below this banner
// again    scanops generate sum-f32-n4096-inner4 --target sm_90

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

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 4 columns of a row, as one access reads or writes them; and 17 rows of them
struct alignas(16) InputVector {
    Input column[4];
};
struct InputRows {
    InputVector row[17];
};
struct alignas(16) OutputVector {
    Output column[4];
};
struct alignas(16) States {  // one per column
    State column[4];
};
struct Items {
    States row[17];
};
struct Ring {  // multistage ring of tiles, by stage, warp and row: a warp reads what its lanes copied
    InputVector x[1][8][544];
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

// A warp's rows in shared memory: in scan order, padded so that lanes access different banks.
__device__ __forceinline__ int access_place(int lane, int row) {
    row += lane / 1;
    return row * 1 + lane % 1;
}

__device__ __forceinline__ int scan_place(int lane) { return lane / 1 * 17 + lane % 1; }

__device__ __forceinline__ InputRows load_input(const InputVector* slot, int lane) {
    InputRows rows;
    slot += scan_place(lane);
    rows.row[0] = slot[0];
    rows.row[1] = slot[1];
    rows.row[2] = slot[2];
    rows.row[3] = slot[3];
    rows.row[4] = slot[4];
    rows.row[5] = slot[5];
    rows.row[6] = slot[6];
    rows.row[7] = slot[7];
    rows.row[8] = slot[8];
    rows.row[9] = slot[9];
    rows.row[10] = slot[10];
    rows.row[11] = slot[11];
    rows.row[12] = slot[12];
    rows.row[13] = slot[13];
    rows.row[14] = slot[14];
    rows.row[15] = slot[15];
    rows.row[16] = slot[16];
    return rows;
}

__device__ __forceinline__ void copy_input(InputVector* slot, int lane, const Input* first, long long step, int live) {
    if (live > 0) copy_async_16(slot + access_place(lane, 0), first);
    if (live > 32) copy_async_16(slot + access_place(lane, 32), first + 32 * step);
    if (live > 64) copy_async_16(slot + access_place(lane, 64), first + 64 * step);
    if (live > 96) copy_async_16(slot + access_place(lane, 96), first + 96 * step);
    if (live > 128) copy_async_16(slot + access_place(lane, 128), first + 128 * step);
    if (live > 160) copy_async_16(slot + access_place(lane, 160), first + 160 * step);
    if (live > 192) copy_async_16(slot + access_place(lane, 192), first + 192 * step);
    if (live > 224) copy_async_16(slot + access_place(lane, 224), first + 224 * step);
    if (live > 256) copy_async_16(slot + access_place(lane, 256), first + 256 * step);
    if (live > 288) copy_async_16(slot + access_place(lane, 288), first + 288 * step);
    if (live > 320) copy_async_16(slot + access_place(lane, 320), first + 320 * step);
    if (live > 352) copy_async_16(slot + access_place(lane, 352), first + 352 * step);
    if (live > 384) copy_async_16(slot + access_place(lane, 384), first + 384 * step);
    if (live > 416) copy_async_16(slot + access_place(lane, 416), first + 416 * step);
    if (live > 448) copy_async_16(slot + access_place(lane, 448), first + 448 * step);
    if (live > 480) copy_async_16(slot + access_place(lane, 480), first + 480 * step);
    if (live > 512) copy_async_16(slot + access_place(lane, 512), first + 512 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    y.column[2] = result(s.column[2]);
    y.column[3] = result(s.column[3]);
    return y;
}

__device__ __forceinline__ void store_items(InputVector* slot, int lane, Output* first, long long step, int live, const States& prefix, const Items& s) {
    OutputVector* const y = reinterpret_cast<OutputVector*>(slot);
    OutputVector* const own = y + scan_place(lane);
    own[0] = results(combine_each(prefix, s.row[0]));
    own[1] = results(combine_each(prefix, s.row[1]));
    own[2] = results(combine_each(prefix, s.row[2]));
    own[3] = results(combine_each(prefix, s.row[3]));
    own[4] = results(combine_each(prefix, s.row[4]));
    own[5] = results(combine_each(prefix, s.row[5]));
    own[6] = results(combine_each(prefix, s.row[6]));
    own[7] = results(combine_each(prefix, s.row[7]));
    own[8] = results(combine_each(prefix, s.row[8]));
    own[9] = results(combine_each(prefix, s.row[9]));
    own[10] = results(combine_each(prefix, s.row[10]));
    own[11] = results(combine_each(prefix, s.row[11]));
    own[12] = results(combine_each(prefix, s.row[12]));
    own[13] = results(combine_each(prefix, s.row[13]));
    own[14] = results(combine_each(prefix, s.row[14]));
    own[15] = results(combine_each(prefix, s.row[15]));
    own[16] = results(combine_each(prefix, s.row[16]));
    __syncwarp();
    if (live > 0) *reinterpret_cast<OutputVector*>(first) = y[access_place(lane, 0)];
    if (live > 32) *reinterpret_cast<OutputVector*>(first + 32 * step) = y[access_place(lane, 32)];
    if (live > 64) *reinterpret_cast<OutputVector*>(first + 64 * step) = y[access_place(lane, 64)];
    if (live > 96) *reinterpret_cast<OutputVector*>(first + 96 * step) = y[access_place(lane, 96)];
    if (live > 128) *reinterpret_cast<OutputVector*>(first + 128 * step) = y[access_place(lane, 128)];
    if (live > 160) *reinterpret_cast<OutputVector*>(first + 160 * step) = y[access_place(lane, 160)];
    if (live > 192) *reinterpret_cast<OutputVector*>(first + 192 * step) = y[access_place(lane, 192)];
    if (live > 224) *reinterpret_cast<OutputVector*>(first + 224 * step) = y[access_place(lane, 224)];
    if (live > 256) *reinterpret_cast<OutputVector*>(first + 256 * step) = y[access_place(lane, 256)];
    if (live > 288) *reinterpret_cast<OutputVector*>(first + 288 * step) = y[access_place(lane, 288)];
    if (live > 320) *reinterpret_cast<OutputVector*>(first + 320 * step) = y[access_place(lane, 320)];
    if (live > 352) *reinterpret_cast<OutputVector*>(first + 352 * step) = y[access_place(lane, 352)];
    if (live > 384) *reinterpret_cast<OutputVector*>(first + 384 * step) = y[access_place(lane, 384)];
    if (live > 416) *reinterpret_cast<OutputVector*>(first + 416 * step) = y[access_place(lane, 416)];
    if (live > 448) *reinterpret_cast<OutputVector*>(first + 448 * step) = y[access_place(lane, 448)];
    if (live > 480) *reinterpret_cast<OutputVector*>(first + 480 * step) = y[access_place(lane, 480)];
    if (live > 512) *reinterpret_cast<OutputVector*>(first + 512 * step) = y[access_place(lane, 512)];
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
    s.row[8] = lift_row(x.row[8]);
    s.row[9] = lift_row(x.row[9]);
    s.row[10] = lift_row(x.row[10]);
    s.row[11] = lift_row(x.row[11]);
    s.row[12] = lift_row(x.row[12]);
    s.row[13] = lift_row(x.row[13]);
    s.row[14] = lift_row(x.row[14]);
    s.row[15] = lift_row(x.row[15]);
    s.row[16] = lift_row(x.row[16]);
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
    s.row[8] = combine_each(s.row[7], s.row[8]);
    s.row[9] = combine_each(s.row[8], s.row[9]);
    s.row[10] = combine_each(s.row[9], s.row[10]);
    s.row[11] = combine_each(s.row[10], s.row[11]);
    s.row[12] = combine_each(s.row[11], s.row[12]);
    s.row[13] = combine_each(s.row[12], s.row[13]);
    s.row[14] = combine_each(s.row[13], s.row[14]);
    s.row[15] = combine_each(s.row[14], s.row[15]);
    s.row[16] = combine_each(s.row[15], s.row[16]);
    return s.row[16];
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

// Inclusive scan across the slots of a warp, 5 steps.
__device__ __forceinline__ States scan_slots(States s, int lane) {
    States older;
    older = shuffle_up_each(s, 1);
    if (lane >= 1) s = combine_each(older, s);
    older = shuffle_up_each(s, 2);
    if (lane >= 2) s = combine_each(older, s);
    older = shuffle_up_each(s, 4);
    if (lane >= 4) s = combine_each(older, s);
    older = shuffle_up_each(s, 8);
    if (lane >= 8) s = combine_each(older, s);
    older = shuffle_up_each(s, 16);
    if (lane >= 16) s = combine_each(older, s);
    return s;
}

__global__ void __launch_bounds__(256, 2)
scan_kernel(const Input* input, Output* output) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[2][8][1];  // by the parity of the tile

    // ---- a block scans 4 columns, 4352 rows at a time; a thread takes 17 of these rows
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 1;  // of this thread's columns in the block's panel
    const long long outer = blockIdx.x;
    const long long column = place * 4;
    const int first = warp * 544 + lane / 1;  // the scan position of this thread's first access
    const Input* x = input + (outer * 4096 + first) * 4 + column;
    Output* y = output + (outer * 4096 + first) * 4 + column;
    int live = 4096 - first;  // rows from here to the end of the column

    // ---- load 17 rows
    copy_input(ring.x[0][warp], lane, x, 4, live);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    Items s = lift_items(load_input(ring.x[0][warp], lane));
    States carry = identities();

    // ---- scan the rows of the thread, then across the slots of the warp
    const States inclusive = scan_slots(scan_items(s), lane);
    const States older = shuffle_up_each(inclusive, 1);
    const States inside = lane >= 1 ? older : identities();

    // ---- combine the totals of the warps: each thread folds those of its columns
    if (lane >= 31) warp_total[0][warp][place] = inclusive;
    __syncthreads();
    States prefix = carry;
    carry = combine_each(carry, warp_total[0][0][place]);
    if (warp == 1) prefix = carry;
    carry = combine_each(carry, warp_total[0][1][place]);
    if (warp == 2) prefix = carry;
    carry = combine_each(carry, warp_total[0][2][place]);
    if (warp == 3) prefix = carry;
    carry = combine_each(carry, warp_total[0][3][place]);
    if (warp == 4) prefix = carry;
    carry = combine_each(carry, warp_total[0][4][place]);
    if (warp == 5) prefix = carry;
    carry = combine_each(carry, warp_total[0][5][place]);
    if (warp == 6) prefix = carry;
    carry = combine_each(carry, warp_total[0][6][place]);
    if (warp == 7) prefix = carry;
    carry = combine_each(carry, warp_total[0][7][place]);
    prefix = combine_each(prefix, inside);

    // ---- store
    store_items(ring.x[0][warp], lane, y, 4, live, prefix, s);
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
    const long long blocks = arguments->lines / 4 * 1;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 69632;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 69632);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output));
}
#endif
