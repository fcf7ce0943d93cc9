// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-f16-n1000-inner50-mask_b8-reverse
//          1000 float16 items of stride 50, the bool mask selects, reverse, float16 out
// plan     columns: threads 512, items 16, tiles 4, columns 32, alone True
//          the scanned dimension has stride 50: 32 neighbouring columns a block
// target   sm_90
// content  sha256 af0005da54472550 of everything below this banner
// again    scanops generate sum-f16-n1000-inner50-mask_b8-reverse --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // float16
typedef unsigned char Mask;  // bool
typedef unsigned short Output;  // float16
typedef float Value;  // what elements are computed in
typedef Value State;  // what a stretch of elements amounts to

#ifdef __CUDACC__  // on a CPU the emulator's cuda_runtime.h has these
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#endif

// ---- operator sum: y[i] = x[0] + x[1] + ... + x[i]
__device__ __forceinline__ State identity() { return 0; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older + newer;
}

// A masked-out element counts as the identity, whatever its value.
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift(half_to_float(x)) : identity(); }

__device__ __forceinline__ Output result(State state) { return float_to_half(state); }

// ---- 16 items: a run of a column, and as states in scan order
struct InputVector {
    Input item[16];
};
struct MaskVector {
    Mask item[16];
};
struct OutputVector {
    Output item[16];
};
struct Items {
    State item[16];
};

__device__ __forceinline__ InputVector load_input(const Input* first, long long step, long long live) {
    InputVector vector = {};
    if (live > 0) vector.item[0] = first[0];
    if (live > 1) vector.item[1] = first[1 * step];
    if (live > 2) vector.item[2] = first[2 * step];
    if (live > 3) vector.item[3] = first[3 * step];
    if (live > 4) vector.item[4] = first[4 * step];
    if (live > 5) vector.item[5] = first[5 * step];
    if (live > 6) vector.item[6] = first[6 * step];
    if (live > 7) vector.item[7] = first[7 * step];
    if (live > 8) vector.item[8] = first[8 * step];
    if (live > 9) vector.item[9] = first[9 * step];
    if (live > 10) vector.item[10] = first[10 * step];
    if (live > 11) vector.item[11] = first[11 * step];
    if (live > 12) vector.item[12] = first[12 * step];
    if (live > 13) vector.item[13] = first[13 * step];
    if (live > 14) vector.item[14] = first[14 * step];
    if (live > 15) vector.item[15] = first[15 * step];
    return vector;
}

__device__ __forceinline__ MaskVector load_mask(const Mask* first, long long step, long long live) {
    MaskVector vector = {};
    if (live > 0) vector.item[0] = first[0];
    if (live > 1) vector.item[1] = first[1 * step];
    if (live > 2) vector.item[2] = first[2 * step];
    if (live > 3) vector.item[3] = first[3 * step];
    if (live > 4) vector.item[4] = first[4 * step];
    if (live > 5) vector.item[5] = first[5 * step];
    if (live > 6) vector.item[6] = first[6 * step];
    if (live > 7) vector.item[7] = first[7 * step];
    if (live > 8) vector.item[8] = first[8 * step];
    if (live > 9) vector.item[9] = first[9 * step];
    if (live > 10) vector.item[10] = first[10 * step];
    if (live > 11) vector.item[11] = first[11 * step];
    if (live > 12) vector.item[12] = first[12 * step];
    if (live > 13) vector.item[13] = first[13 * step];
    if (live > 14) vector.item[14] = first[14 * step];
    if (live > 15) vector.item[15] = first[15 * step];
    return vector;
}

__device__ __forceinline__ void store_items(Output* first, long long step, long long live, State prefix, const Items& s) {
    OutputVector y;
    y.item[0] = result(combine(prefix, s.item[0]));
    y.item[1] = result(combine(prefix, s.item[1]));
    y.item[2] = result(combine(prefix, s.item[2]));
    y.item[3] = result(combine(prefix, s.item[3]));
    y.item[4] = result(combine(prefix, s.item[4]));
    y.item[5] = result(combine(prefix, s.item[5]));
    y.item[6] = result(combine(prefix, s.item[6]));
    y.item[7] = result(combine(prefix, s.item[7]));
    y.item[8] = result(combine(prefix, s.item[8]));
    y.item[9] = result(combine(prefix, s.item[9]));
    y.item[10] = result(combine(prefix, s.item[10]));
    y.item[11] = result(combine(prefix, s.item[11]));
    y.item[12] = result(combine(prefix, s.item[12]));
    y.item[13] = result(combine(prefix, s.item[13]));
    y.item[14] = result(combine(prefix, s.item[14]));
    y.item[15] = result(combine(prefix, s.item[15]));
    if (live > 0) first[0] = y.item[0];
    if (live > 1) first[1 * step] = y.item[1];
    if (live > 2) first[2 * step] = y.item[2];
    if (live > 3) first[3 * step] = y.item[3];
    if (live > 4) first[4 * step] = y.item[4];
    if (live > 5) first[5 * step] = y.item[5];
    if (live > 6) first[6 * step] = y.item[6];
    if (live > 7) first[7 * step] = y.item[7];
    if (live > 8) first[8 * step] = y.item[8];
    if (live > 9) first[9 * step] = y.item[9];
    if (live > 10) first[10 * step] = y.item[10];
    if (live > 11) first[11 * step] = y.item[11];
    if (live > 12) first[12 * step] = y.item[12];
    if (live > 13) first[13 * step] = y.item[13];
    if (live > 14) first[14 * step] = y.item[14];
    if (live > 15) first[15 * step] = y.item[15];
}

__device__ __forceinline__ Items lift_items(const InputVector& x, const MaskVector& m) {
    Items s;
    s.item[0] = element(x.item[0], m.item[0]);
    s.item[1] = element(x.item[1], m.item[1]);
    s.item[2] = element(x.item[2], m.item[2]);
    s.item[3] = element(x.item[3], m.item[3]);
    s.item[4] = element(x.item[4], m.item[4]);
    s.item[5] = element(x.item[5], m.item[5]);
    s.item[6] = element(x.item[6], m.item[6]);
    s.item[7] = element(x.item[7], m.item[7]);
    s.item[8] = element(x.item[8], m.item[8]);
    s.item[9] = element(x.item[9], m.item[9]);
    s.item[10] = element(x.item[10], m.item[10]);
    s.item[11] = element(x.item[11], m.item[11]);
    s.item[12] = element(x.item[12], m.item[12]);
    s.item[13] = element(x.item[13], m.item[13]);
    s.item[14] = element(x.item[14], m.item[14]);
    s.item[15] = element(x.item[15], m.item[15]);
    return s;
}

// Inclusive scan of the items in place; returns their total.
__device__ __forceinline__ State scan_items(Items& s) {
    s.item[1] = combine(s.item[0], s.item[1]);
    s.item[2] = combine(s.item[1], s.item[2]);
    s.item[3] = combine(s.item[2], s.item[3]);
    s.item[4] = combine(s.item[3], s.item[4]);
    s.item[5] = combine(s.item[4], s.item[5]);
    s.item[6] = combine(s.item[5], s.item[6]);
    s.item[7] = combine(s.item[6], s.item[7]);
    s.item[8] = combine(s.item[7], s.item[8]);
    s.item[9] = combine(s.item[8], s.item[9]);
    s.item[10] = combine(s.item[9], s.item[10]);
    s.item[11] = combine(s.item[10], s.item[11]);
    s.item[12] = combine(s.item[11], s.item[12]);
    s.item[13] = combine(s.item[12], s.item[13]);
    s.item[14] = combine(s.item[13], s.item[14]);
    s.item[15] = combine(s.item[14], s.item[15]);
    return s.item[15];
}

__global__ void __launch_bounds__(512, 1)
scan_kernel(const Input* input, const Mask* mask, Output* output) {
    __shared__ State warp_total[2][16][32];  // by the parity of the tile

    // ---- a block scans columns, 32 x 256 rows at a time; a thread takes 16 of these rows
    const int warp = threadIdx.x / 32;
    const int place = threadIdx.x % 32;  // of the column among those of the block
    const long long outer = blockIdx.x / 2;
    const long long column = (long long)(blockIdx.x % 2) * 32 + place;
    const int first = (int)(threadIdx.x / 32) * 16;  // the scan position of this thread's first item
    const Input* x = input + (outer * 1000 + (999 - first)) * 50 + column;
    const Mask* m = mask + (outer * 1000 + (999 - first)) * 50 + column;
    Output* y = output + (outer * 1000 + (999 - first)) * 50 + column;

    // ---- load 16 items of a column
    long long live = column < 50 ? 1000LL - first : 0;  // items from here to the end of the column
    InputVector x0 = load_input(x, -50, live);
    MaskVector m0 = load_mask(m, -50, live);

    State carry = identity();  // everything before this tile
    for (int tile = 0; tile < 4; ++tile) {
        Items s = lift_items(x0, m0);

        // ---- the next tile's loads, in flight while this one is scanned
        if (tile < 3) {
            x -= 256LL * 50;
            x0 = load_input(x, -50, live - 256);
            m -= 256LL * 50;
            m0 = load_mask(m, -50, live - 256);
        }

        // ---- scan the run in its thread
        const State inclusive = scan_items(s);

        // ---- totals of the warps: each thread folds those of its column
        warp_total[tile % 2][warp][place] = inclusive;
        __syncthreads();
        State prefix = carry;
        carry = combine(carry, warp_total[tile % 2][0][place]);
        if (warp == 1) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][1][place]);
        if (warp == 2) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][2][place]);
        if (warp == 3) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][3][place]);
        if (warp == 4) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][4][place]);
        if (warp == 5) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][5][place]);
        if (warp == 6) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][6][place]);
        if (warp == 7) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][7][place]);
        if (warp == 8) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][8][place]);
        if (warp == 9) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][9][place]);
        if (warp == 10) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][10][place]);
        if (warp == 11) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][11][place]);
        if (warp == 12) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][12][place]);
        if (warp == 13) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][13][place]);
        if (warp == 14) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][14][place]);
        if (warp == 15) prefix = carry;
        carry = combine(carry, warp_total[tile % 2][15][place]);

        // ---- store
        store_items(y, -50, live, prefix, s);
        y -= 256LL * 50;
        live -= 256;
    }
}

#ifndef __CUDACC_RTC__  // the host's side: a plain C interface, the same for every kernel
struct ScanArguments {
    const void* input;
    const void* mask;
    void* output;
    void* workspace;
    long long lines;  // scanned sequences
    int multiprocessors;
};

extern "C" int scanops_abi() { return 1; }

extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }

extern "C" long long scanops_workspace_bytes(long long) { return 0; }

extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {
    const long long blocks = arguments->lines / 50 * 2;
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel,
                              (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output);
}
#endif
