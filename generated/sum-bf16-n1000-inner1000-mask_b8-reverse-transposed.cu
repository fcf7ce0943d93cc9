// scanops: y[i] = x[0] + x[1] + ... + x[i]
//
// spec     sum-bf16-n1000-inner1000-mask_b8-reverse-transposed
//          1000 bfloat16 items of stride 1000, the bool mask selects, reverse, transposed, bfloat16 out
// plan     transposed: threads 128, items 32, tiles 8, vector 2, stages 3, blocks 3, streams True
//          lines of 1000 are contiguous in the input, strided in the output: tiles are transposed in shared memory
// target   sm_90
// content  sha256 5969559011cc7f76 of everything below this banner
// again    scanops generate sum-bf16-n1000-inner1000-mask_b8-reverse-transposed --target sm_90

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

typedef unsigned short Input;  // bfloat16
typedef unsigned char Mask;  // bool
typedef unsigned short Output;  // bfloat16
typedef float Value;  // accumulator type
typedef Value State;  // scan state of a contiguous range of items

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines these for a CPU
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

__device__ __forceinline__ unsigned short float_to_bfloat(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

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

// A masked-out item counts as the identity, whatever its value.
__device__ __forceinline__ State element(Input x, Mask m) { return m ? lift(bfloat_to_float(x)) : identity(); }

__device__ __forceinline__ Output result(State state) { return float_to_bfloat(state); }

// ---- 2 lines of a lane at one position; 32 positions of them; and pieces of one line
struct alignas(4) InputVector {
    Input column[2];
};
struct InputRows {
    InputVector row[32];
};
struct alignas(16) InputPiece {
    Input item[8];
};
struct alignas(2) MaskVector {
    Mask column[2];
};
struct MaskRows {
    MaskVector row[32];
};
struct alignas(4) OutputVector {
    Output column[2];
};
struct alignas(8) States {  // one per line
    State column[2];
};
struct Items {
    States row[32];
};
struct Ring {  // multistage ring of tiles, by stage and warp: a warp reads what its lanes copied
    alignas(16) Input x[3][4][2048];
    alignas(16) Mask m[3][4][2048];
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    s.column[1] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    s.column[1] = combine(older.column[1], newer.column[1]);
    return s;
}

// Place of an item in shared memory: line after line, in pieces swizzled so that lanes access different banks.
__device__ __forceinline__ int input_place(int line, int position) {
    const int piece = line * 4 + position / 8;
    return (piece ^ piece / 8 % 8) * 8 + position % 8;
}

__device__ __forceinline__ InputRows load_input(const Input* slab, int lane) {
    InputRows rows;
    InputPiece piece;
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2, 0));
    rows.row[31].column[0] = piece.item[0];
    rows.row[30].column[0] = piece.item[1];
    rows.row[29].column[0] = piece.item[2];
    rows.row[28].column[0] = piece.item[3];
    rows.row[27].column[0] = piece.item[4];
    rows.row[26].column[0] = piece.item[5];
    rows.row[25].column[0] = piece.item[6];
    rows.row[24].column[0] = piece.item[7];
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2, 8));
    rows.row[23].column[0] = piece.item[0];
    rows.row[22].column[0] = piece.item[1];
    rows.row[21].column[0] = piece.item[2];
    rows.row[20].column[0] = piece.item[3];
    rows.row[19].column[0] = piece.item[4];
    rows.row[18].column[0] = piece.item[5];
    rows.row[17].column[0] = piece.item[6];
    rows.row[16].column[0] = piece.item[7];
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2, 16));
    rows.row[15].column[0] = piece.item[0];
    rows.row[14].column[0] = piece.item[1];
    rows.row[13].column[0] = piece.item[2];
    rows.row[12].column[0] = piece.item[3];
    rows.row[11].column[0] = piece.item[4];
    rows.row[10].column[0] = piece.item[5];
    rows.row[9].column[0] = piece.item[6];
    rows.row[8].column[0] = piece.item[7];
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2, 24));
    rows.row[7].column[0] = piece.item[0];
    rows.row[6].column[0] = piece.item[1];
    rows.row[5].column[0] = piece.item[2];
    rows.row[4].column[0] = piece.item[3];
    rows.row[3].column[0] = piece.item[4];
    rows.row[2].column[0] = piece.item[5];
    rows.row[1].column[0] = piece.item[6];
    rows.row[0].column[0] = piece.item[7];
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2 + 1, 0));
    rows.row[31].column[1] = piece.item[0];
    rows.row[30].column[1] = piece.item[1];
    rows.row[29].column[1] = piece.item[2];
    rows.row[28].column[1] = piece.item[3];
    rows.row[27].column[1] = piece.item[4];
    rows.row[26].column[1] = piece.item[5];
    rows.row[25].column[1] = piece.item[6];
    rows.row[24].column[1] = piece.item[7];
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2 + 1, 8));
    rows.row[23].column[1] = piece.item[0];
    rows.row[22].column[1] = piece.item[1];
    rows.row[21].column[1] = piece.item[2];
    rows.row[20].column[1] = piece.item[3];
    rows.row[19].column[1] = piece.item[4];
    rows.row[18].column[1] = piece.item[5];
    rows.row[17].column[1] = piece.item[6];
    rows.row[16].column[1] = piece.item[7];
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2 + 1, 16));
    rows.row[15].column[1] = piece.item[0];
    rows.row[14].column[1] = piece.item[1];
    rows.row[13].column[1] = piece.item[2];
    rows.row[12].column[1] = piece.item[3];
    rows.row[11].column[1] = piece.item[4];
    rows.row[10].column[1] = piece.item[5];
    rows.row[9].column[1] = piece.item[6];
    rows.row[8].column[1] = piece.item[7];
    piece = *reinterpret_cast<const InputPiece*>(slab + input_place(lane * 2 + 1, 24));
    rows.row[7].column[1] = piece.item[0];
    rows.row[6].column[1] = piece.item[1];
    rows.row[5].column[1] = piece.item[2];
    rows.row[4].column[1] = piece.item[3];
    rows.row[3].column[1] = piece.item[4];
    rows.row[2].column[1] = piece.item[5];
    rows.row[1].column[1] = piece.item[6];
    rows.row[0].column[1] = piece.item[7];
    return rows;
}

// Each lane copies its part of one in 8 of the lines that exist.
__device__ __forceinline__ void copy_input(Input* slab, int lane, const Input* first, long long stride, int lines, int live) {
    const int line = lane / 4, position = lane % 4 * 8;
    if (position < 32 - live) return;
    first += line * stride + position;
    if (line < lines) copy_stream_16(slab + input_place(line, position), first);
    if (line + 8 < lines) copy_stream_16(slab + input_place(line + 8, position), first + 8 * stride);
    if (line + 16 < lines) copy_stream_16(slab + input_place(line + 16, position), first + 16 * stride);
    if (line + 24 < lines) copy_stream_16(slab + input_place(line + 24, position), first + 24 * stride);
    if (line + 32 < lines) copy_stream_16(slab + input_place(line + 32, position), first + 32 * stride);
    if (line + 40 < lines) copy_stream_16(slab + input_place(line + 40, position), first + 40 * stride);
    if (line + 48 < lines) copy_stream_16(slab + input_place(line + 48, position), first + 48 * stride);
    if (line + 56 < lines) copy_stream_16(slab + input_place(line + 56, position), first + 56 * stride);
}

__device__ __forceinline__ MaskRows load_mask(const Mask* slab, int lane) {
    MaskRows rows;
    slab += lane * 2;
    rows.row[0] = *reinterpret_cast<const MaskVector*>(slab);
    rows.row[1] = *reinterpret_cast<const MaskVector*>(slab + 64);
    rows.row[2] = *reinterpret_cast<const MaskVector*>(slab + 128);
    rows.row[3] = *reinterpret_cast<const MaskVector*>(slab + 192);
    rows.row[4] = *reinterpret_cast<const MaskVector*>(slab + 256);
    rows.row[5] = *reinterpret_cast<const MaskVector*>(slab + 320);
    rows.row[6] = *reinterpret_cast<const MaskVector*>(slab + 384);
    rows.row[7] = *reinterpret_cast<const MaskVector*>(slab + 448);
    rows.row[8] = *reinterpret_cast<const MaskVector*>(slab + 512);
    rows.row[9] = *reinterpret_cast<const MaskVector*>(slab + 576);
    rows.row[10] = *reinterpret_cast<const MaskVector*>(slab + 640);
    rows.row[11] = *reinterpret_cast<const MaskVector*>(slab + 704);
    rows.row[12] = *reinterpret_cast<const MaskVector*>(slab + 768);
    rows.row[13] = *reinterpret_cast<const MaskVector*>(slab + 832);
    rows.row[14] = *reinterpret_cast<const MaskVector*>(slab + 896);
    rows.row[15] = *reinterpret_cast<const MaskVector*>(slab + 960);
    rows.row[16] = *reinterpret_cast<const MaskVector*>(slab + 1024);
    rows.row[17] = *reinterpret_cast<const MaskVector*>(slab + 1088);
    rows.row[18] = *reinterpret_cast<const MaskVector*>(slab + 1152);
    rows.row[19] = *reinterpret_cast<const MaskVector*>(slab + 1216);
    rows.row[20] = *reinterpret_cast<const MaskVector*>(slab + 1280);
    rows.row[21] = *reinterpret_cast<const MaskVector*>(slab + 1344);
    rows.row[22] = *reinterpret_cast<const MaskVector*>(slab + 1408);
    rows.row[23] = *reinterpret_cast<const MaskVector*>(slab + 1472);
    rows.row[24] = *reinterpret_cast<const MaskVector*>(slab + 1536);
    rows.row[25] = *reinterpret_cast<const MaskVector*>(slab + 1600);
    rows.row[26] = *reinterpret_cast<const MaskVector*>(slab + 1664);
    rows.row[27] = *reinterpret_cast<const MaskVector*>(slab + 1728);
    rows.row[28] = *reinterpret_cast<const MaskVector*>(slab + 1792);
    rows.row[29] = *reinterpret_cast<const MaskVector*>(slab + 1856);
    rows.row[30] = *reinterpret_cast<const MaskVector*>(slab + 1920);
    rows.row[31] = *reinterpret_cast<const MaskVector*>(slab + 1984);
    return rows;
}

// Each lane copies its part of one in 4 of the positions.
__device__ __forceinline__ void copy_mask(Mask* slab, int lane, const Mask* first, long long step, int lines, int live) {
    const int row = lane / 8, line = lane % 8 * 8;
    if (line >= lines) return;
    first += row * step + line;
    slab += row * 64 + line;
    if (row < live) copy_async_8(slab, first);
    if (row + 4 < live) copy_async_8(slab + 256, first + 4 * step);
    if (row + 8 < live) copy_async_8(slab + 512, first + 8 * step);
    if (row + 12 < live) copy_async_8(slab + 768, first + 12 * step);
    if (row + 16 < live) copy_async_8(slab + 1024, first + 16 * step);
    if (row + 20 < live) copy_async_8(slab + 1280, first + 20 * step);
    if (row + 24 < live) copy_async_8(slab + 1536, first + 24 * step);
    if (row + 28 < live) copy_async_8(slab + 1792, first + 28 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    y.column[1] = result(s.column[1]);
    return y;
}

__device__ __forceinline__ void store_items(int lane, Output* first, long long step, int lines, int live, const States& prefix, const Items& s) {
    lines -= lane * 2;
    if (lines <= 0) return;
    first += lane * 2;
    if (live > 0) *reinterpret_cast<OutputVector*>(first) = results(combine_each(prefix, s.row[0]));
    if (live > 1) *reinterpret_cast<OutputVector*>(first + 1 * step) = results(combine_each(prefix, s.row[1]));
    if (live > 2) *reinterpret_cast<OutputVector*>(first + 2 * step) = results(combine_each(prefix, s.row[2]));
    if (live > 3) *reinterpret_cast<OutputVector*>(first + 3 * step) = results(combine_each(prefix, s.row[3]));
    if (live > 4) *reinterpret_cast<OutputVector*>(first + 4 * step) = results(combine_each(prefix, s.row[4]));
    if (live > 5) *reinterpret_cast<OutputVector*>(first + 5 * step) = results(combine_each(prefix, s.row[5]));
    if (live > 6) *reinterpret_cast<OutputVector*>(first + 6 * step) = results(combine_each(prefix, s.row[6]));
    if (live > 7) *reinterpret_cast<OutputVector*>(first + 7 * step) = results(combine_each(prefix, s.row[7]));
    if (live > 8) *reinterpret_cast<OutputVector*>(first + 8 * step) = results(combine_each(prefix, s.row[8]));
    if (live > 9) *reinterpret_cast<OutputVector*>(first + 9 * step) = results(combine_each(prefix, s.row[9]));
    if (live > 10) *reinterpret_cast<OutputVector*>(first + 10 * step) = results(combine_each(prefix, s.row[10]));
    if (live > 11) *reinterpret_cast<OutputVector*>(first + 11 * step) = results(combine_each(prefix, s.row[11]));
    if (live > 12) *reinterpret_cast<OutputVector*>(first + 12 * step) = results(combine_each(prefix, s.row[12]));
    if (live > 13) *reinterpret_cast<OutputVector*>(first + 13 * step) = results(combine_each(prefix, s.row[13]));
    if (live > 14) *reinterpret_cast<OutputVector*>(first + 14 * step) = results(combine_each(prefix, s.row[14]));
    if (live > 15) *reinterpret_cast<OutputVector*>(first + 15 * step) = results(combine_each(prefix, s.row[15]));
    if (live > 16) *reinterpret_cast<OutputVector*>(first + 16 * step) = results(combine_each(prefix, s.row[16]));
    if (live > 17) *reinterpret_cast<OutputVector*>(first + 17 * step) = results(combine_each(prefix, s.row[17]));
    if (live > 18) *reinterpret_cast<OutputVector*>(first + 18 * step) = results(combine_each(prefix, s.row[18]));
    if (live > 19) *reinterpret_cast<OutputVector*>(first + 19 * step) = results(combine_each(prefix, s.row[19]));
    if (live > 20) *reinterpret_cast<OutputVector*>(first + 20 * step) = results(combine_each(prefix, s.row[20]));
    if (live > 21) *reinterpret_cast<OutputVector*>(first + 21 * step) = results(combine_each(prefix, s.row[21]));
    if (live > 22) *reinterpret_cast<OutputVector*>(first + 22 * step) = results(combine_each(prefix, s.row[22]));
    if (live > 23) *reinterpret_cast<OutputVector*>(first + 23 * step) = results(combine_each(prefix, s.row[23]));
    if (live > 24) *reinterpret_cast<OutputVector*>(first + 24 * step) = results(combine_each(prefix, s.row[24]));
    if (live > 25) *reinterpret_cast<OutputVector*>(first + 25 * step) = results(combine_each(prefix, s.row[25]));
    if (live > 26) *reinterpret_cast<OutputVector*>(first + 26 * step) = results(combine_each(prefix, s.row[26]));
    if (live > 27) *reinterpret_cast<OutputVector*>(first + 27 * step) = results(combine_each(prefix, s.row[27]));
    if (live > 28) *reinterpret_cast<OutputVector*>(first + 28 * step) = results(combine_each(prefix, s.row[28]));
    if (live > 29) *reinterpret_cast<OutputVector*>(first + 29 * step) = results(combine_each(prefix, s.row[29]));
    if (live > 30) *reinterpret_cast<OutputVector*>(first + 30 * step) = results(combine_each(prefix, s.row[30]));
    if (live > 31) *reinterpret_cast<OutputVector*>(first + 31 * step) = results(combine_each(prefix, s.row[31]));
}

__device__ __forceinline__ States lift_row(const InputVector& x, const MaskVector& m) {
    States s;
    s.column[0] = element(x.column[0], m.column[0]);
    s.column[1] = element(x.column[1], m.column[1]);
    return s;
}

__device__ __forceinline__ Items lift_items(const InputRows& x, const MaskRows& m) {
    Items s;
    s.row[0] = lift_row(x.row[0], m.row[0]);
    s.row[1] = lift_row(x.row[1], m.row[1]);
    s.row[2] = lift_row(x.row[2], m.row[2]);
    s.row[3] = lift_row(x.row[3], m.row[3]);
    s.row[4] = lift_row(x.row[4], m.row[4]);
    s.row[5] = lift_row(x.row[5], m.row[5]);
    s.row[6] = lift_row(x.row[6], m.row[6]);
    s.row[7] = lift_row(x.row[7], m.row[7]);
    s.row[8] = lift_row(x.row[8], m.row[8]);
    s.row[9] = lift_row(x.row[9], m.row[9]);
    s.row[10] = lift_row(x.row[10], m.row[10]);
    s.row[11] = lift_row(x.row[11], m.row[11]);
    s.row[12] = lift_row(x.row[12], m.row[12]);
    s.row[13] = lift_row(x.row[13], m.row[13]);
    s.row[14] = lift_row(x.row[14], m.row[14]);
    s.row[15] = lift_row(x.row[15], m.row[15]);
    s.row[16] = lift_row(x.row[16], m.row[16]);
    s.row[17] = lift_row(x.row[17], m.row[17]);
    s.row[18] = lift_row(x.row[18], m.row[18]);
    s.row[19] = lift_row(x.row[19], m.row[19]);
    s.row[20] = lift_row(x.row[20], m.row[20]);
    s.row[21] = lift_row(x.row[21], m.row[21]);
    s.row[22] = lift_row(x.row[22], m.row[22]);
    s.row[23] = lift_row(x.row[23], m.row[23]);
    s.row[24] = lift_row(x.row[24], m.row[24]);
    s.row[25] = lift_row(x.row[25], m.row[25]);
    s.row[26] = lift_row(x.row[26], m.row[26]);
    s.row[27] = lift_row(x.row[27], m.row[27]);
    s.row[28] = lift_row(x.row[28], m.row[28]);
    s.row[29] = lift_row(x.row[29], m.row[29]);
    s.row[30] = lift_row(x.row[30], m.row[30]);
    s.row[31] = lift_row(x.row[31], m.row[31]);
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
    s.row[17] = combine_each(s.row[16], s.row[17]);
    s.row[18] = combine_each(s.row[17], s.row[18]);
    s.row[19] = combine_each(s.row[18], s.row[19]);
    s.row[20] = combine_each(s.row[19], s.row[20]);
    s.row[21] = combine_each(s.row[20], s.row[21]);
    s.row[22] = combine_each(s.row[21], s.row[22]);
    s.row[23] = combine_each(s.row[22], s.row[23]);
    s.row[24] = combine_each(s.row[23], s.row[24]);
    s.row[25] = combine_each(s.row[24], s.row[25]);
    s.row[26] = combine_each(s.row[25], s.row[26]);
    s.row[27] = combine_each(s.row[26], s.row[27]);
    s.row[28] = combine_each(s.row[27], s.row[28]);
    s.row[29] = combine_each(s.row[28], s.row[29]);
    s.row[30] = combine_each(s.row[29], s.row[30]);
    s.row[31] = combine_each(s.row[30], s.row[31]);
    return s.row[31];
}

// ---- operands with strides: sizes and strides, in items, of the dimensions that are not scanned
struct Geometry {
    int rank;
    long long size[24];
    long long input_stride[24];
    long long mask_stride[24];
    long long gate_stride[24];
    long long starts_stride[24];
    long long input_step;  // stride of the scanned dimension
    long long mask_step;
    long long gate_step;
    long long starts_step;
};

__device__ __forceinline__ long long line_offset(long long line, int rank, const long long* size,
                                                 const long long* stride) {
    long long offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
        offset += line % size[d] * stride[d];
        line /= size[d];
    }
    return offset;
}

struct Neighbours {  // the dimension along which lines are adjacent in some operand
    long long size;          // size of the dimension
    long long lines;         // difference of the numbers of adjacent lines
    long long input_stride;  // the same in items
    long long mask_stride;
    long long gate_stride;
    long long starts_stride;
};

__global__ void __launch_bounds__(128, 3)
scan_kernel(const Input* input, const Mask* mask, Output* output,
            const __grid_constant__ Geometry geometry, const Neighbours neighbours) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[2][4][32];  // by the parity of the tile

    // ---- a block scans 64 neighbouring lines, 128 positions at a time; a warp takes 32 of these
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = lane;  // of this thread's lines in the block's panel
    const long long panels = (neighbours.size + 63) / 64;  // the last one may be partial
    const long long other = blockIdx.x / panels;  // index of all other dimensions
    const long long begin = blockIdx.x % panels * 64;
    const int lines = (int)(neighbours.size - begin < 64 ? neighbours.size - begin : 64);
    const long long line = other * neighbours.size + begin;
    const int first = warp * 32;  // the scan position of this warp's first items
    const Input* x = input + line_offset(line, geometry.rank, geometry.size, geometry.input_stride)
        + (968 - first);
    const Mask* m = mask + line_offset(line, geometry.rank, geometry.size, geometry.mask_stride)
        + (999 - first) * geometry.mask_step;
    Output* y = output + (line / 1000 * 1000 + (999 - first)) * 1000 + line % 1000;
    const int live = 1000 - first;  // positions from here to the end of the line

    // ---- prologue: issue the copies of 2 tiles before the first is scanned
    const auto copy_tile = [&](int tile) {
        if (tile < 8) {
            copy_input(ring.x[tile % 3][warp], lane, x, neighbours.input_stride, lines, live - tile * 128);
            copy_mask(ring.m[tile % 3][warp], lane, m, -geometry.mask_step, lines, live - tile * 128);
            x -= 128;
            m += 128LL * -geometry.mask_step;
        }
        copy_async_commit();
    };
    copy_tile(0);
    copy_tile(1);

    States carry = identities();  // carry from the tiles before this one
    for (int tile = 0; tile < 8; ++tile) {
        copy_tile(tile + 2);
        copy_async_wait<2>();
        __syncwarp();
        Items s = lift_items(load_input(ring.x[tile % 3][warp], lane), load_mask(ring.m[tile % 3][warp], lane));

        // ---- scan the rows of the thread
        const States inclusive = scan_items(s);

        // ---- combine the totals of the warps: each thread folds those of its columns
        warp_total[tile % 2][warp][place] = inclusive;
        __syncthreads();
        States prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][0][place]);
        if (warp == 1) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][1][place]);
        if (warp == 2) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][2][place]);
        if (warp == 3) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][3][place]);

        // ---- store
        store_items(lane, y, -1000, lines, live - tile * 128, prefix, s);
        y -= 128LL * 1000;
        __syncwarp();
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
    Geometry geometry;
    Neighbours neighbours;
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
    const Neighbours neighbours = arguments->neighbours;
    const long long blocks = arguments->lines / neighbours.size * ((neighbours.size + 63) / 64);
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(128);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 73728;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 73728);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (const Mask*)arguments->mask, (Output*)arguments->output, arguments->geometry, neighbours));
}
#endif
