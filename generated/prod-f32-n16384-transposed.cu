// scanops: y[i] = x[0] * x[1] * ... * x[i]
//
// spec     prod-f32-n16384-transposed
//          16384 float32 items, transposed, float32 out
// plan     transposed: threads 256, items 32, tiles 64, vector 1, stages 3, blocks 2, streams True
//          lines of 16384 are strided in the input, contiguous in the output: tiles are transposed in shared memory
// target   sm_90
// content  sha256 8a95087f7df56f61 of everything below this banner
// again    scanops generate prod-f32-n16384-transposed --target sm_90

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

// ---- operator prod: y[i] = x[0] * x[1] * ... * x[i]
__device__ __forceinline__ State identity() { return 1; }

__device__ __forceinline__ State lift(Value x) { return x; }

__device__ __forceinline__ State combine(State older, State newer) {
    return older * newer;
}

// Compensation: what rounding has lost so far, and a total with it added. Infinities and NaN carry none; -0 keeps its sign.
__device__ __forceinline__ Value lose(Value lost, Value older, Value newer) { return fma(lost, newer, fma(older, newer, -(older * newer))); }

__device__ __forceinline__ Value regain(Value total, Value lost) { return total - total == 0 && total != 0 ? total + lost : total; }

__device__ __forceinline__ State element(Input x) { return lift(x); }

__device__ __forceinline__ Output result(State state) { return state; }

// ---- 1 line of a lane at one position; 32 positions of it; and pieces of one line
struct alignas(4) InputVector {
    Input column[1];
};
struct InputRows {
    InputVector row[32];
};
struct alignas(4) OutputVector {
    Output column[1];
};
struct OutputRows {
    OutputVector row[32];
};
struct alignas(16) OutputPiece {
    Output item[4];
};
struct alignas(4) States {  // one per line
    State column[1];
};
struct Items {
    States row[32];
};
struct Ring {  // multistage ring of tiles, by stage and warp: a warp reads what its lanes copied
    alignas(16) Input x[3][8][1024];  // overwritten by the results
};

__device__ __forceinline__ States identities() {
    States s;
    s.column[0] = identity();
    return s;
}

__device__ __forceinline__ States combine_each(const States& older, const States& newer) {
    States s;
    s.column[0] = combine(older.column[0], newer.column[0]);
    return s;
}

__device__ __forceinline__ States lose_each(const States& lost, const States& older, const States& newer) {
    States s;
    s.column[0] = lose(lost.column[0], older.column[0], newer.column[0]);
    return s;
}

__device__ __forceinline__ States regain_each(const States& totals, const States& lost) {
    States s;
    s.column[0] = regain(totals.column[0], lost.column[0]);
    return s;
}

__device__ __forceinline__ InputRows load_input(const Input* slab, int lane) {
    InputRows rows;
    slab += lane;
    rows.row[0] = *reinterpret_cast<const InputVector*>(slab);
    rows.row[1] = *reinterpret_cast<const InputVector*>(slab + 32);
    rows.row[2] = *reinterpret_cast<const InputVector*>(slab + 64);
    rows.row[3] = *reinterpret_cast<const InputVector*>(slab + 96);
    rows.row[4] = *reinterpret_cast<const InputVector*>(slab + 128);
    rows.row[5] = *reinterpret_cast<const InputVector*>(slab + 160);
    rows.row[6] = *reinterpret_cast<const InputVector*>(slab + 192);
    rows.row[7] = *reinterpret_cast<const InputVector*>(slab + 224);
    rows.row[8] = *reinterpret_cast<const InputVector*>(slab + 256);
    rows.row[9] = *reinterpret_cast<const InputVector*>(slab + 288);
    rows.row[10] = *reinterpret_cast<const InputVector*>(slab + 320);
    rows.row[11] = *reinterpret_cast<const InputVector*>(slab + 352);
    rows.row[12] = *reinterpret_cast<const InputVector*>(slab + 384);
    rows.row[13] = *reinterpret_cast<const InputVector*>(slab + 416);
    rows.row[14] = *reinterpret_cast<const InputVector*>(slab + 448);
    rows.row[15] = *reinterpret_cast<const InputVector*>(slab + 480);
    rows.row[16] = *reinterpret_cast<const InputVector*>(slab + 512);
    rows.row[17] = *reinterpret_cast<const InputVector*>(slab + 544);
    rows.row[18] = *reinterpret_cast<const InputVector*>(slab + 576);
    rows.row[19] = *reinterpret_cast<const InputVector*>(slab + 608);
    rows.row[20] = *reinterpret_cast<const InputVector*>(slab + 640);
    rows.row[21] = *reinterpret_cast<const InputVector*>(slab + 672);
    rows.row[22] = *reinterpret_cast<const InputVector*>(slab + 704);
    rows.row[23] = *reinterpret_cast<const InputVector*>(slab + 736);
    rows.row[24] = *reinterpret_cast<const InputVector*>(slab + 768);
    rows.row[25] = *reinterpret_cast<const InputVector*>(slab + 800);
    rows.row[26] = *reinterpret_cast<const InputVector*>(slab + 832);
    rows.row[27] = *reinterpret_cast<const InputVector*>(slab + 864);
    rows.row[28] = *reinterpret_cast<const InputVector*>(slab + 896);
    rows.row[29] = *reinterpret_cast<const InputVector*>(slab + 928);
    rows.row[30] = *reinterpret_cast<const InputVector*>(slab + 960);
    rows.row[31] = *reinterpret_cast<const InputVector*>(slab + 992);
    return rows;
}

// Each lane copies its part of one in 4 of the positions.
__device__ __forceinline__ void copy_input(Input* slab, int lane, const Input* first, long long step, int lines) {
    const int row = lane / 8, line = lane % 8 * 4;
    if (line >= lines) return;
    first += row * step + line;
    slab += row * 32 + line;
    copy_stream_16(slab, first);
    copy_stream_16(slab + 128, first + 4 * step);
    copy_stream_16(slab + 256, first + 8 * step);
    copy_stream_16(slab + 384, first + 12 * step);
    copy_stream_16(slab + 512, first + 16 * step);
    copy_stream_16(slab + 640, first + 20 * step);
    copy_stream_16(slab + 768, first + 24 * step);
    copy_stream_16(slab + 896, first + 28 * step);
}

__device__ __forceinline__ OutputVector results(const States& s) {
    OutputVector y;
    y.column[0] = result(s.column[0]);
    return y;
}

// Place of an item in shared memory: line after line, in pieces swizzled so that lanes access different banks.
__device__ __forceinline__ int output_place(int line, int position) {
    const int piece = line * 8 + position / 4;
    return (piece ^ piece / 8 % 8) * 4 + position % 4;
}

__device__ __forceinline__ void store_items(Output* slab, int lane, Output* first, long long stride, int lines, const States& prefix, const Items& s) {
    OutputRows y;
    y.row[0] = results(combine_each(prefix, s.row[0]));
    y.row[1] = results(combine_each(prefix, s.row[1]));
    y.row[2] = results(combine_each(prefix, s.row[2]));
    y.row[3] = results(combine_each(prefix, s.row[3]));
    y.row[4] = results(combine_each(prefix, s.row[4]));
    y.row[5] = results(combine_each(prefix, s.row[5]));
    y.row[6] = results(combine_each(prefix, s.row[6]));
    y.row[7] = results(combine_each(prefix, s.row[7]));
    y.row[8] = results(combine_each(prefix, s.row[8]));
    y.row[9] = results(combine_each(prefix, s.row[9]));
    y.row[10] = results(combine_each(prefix, s.row[10]));
    y.row[11] = results(combine_each(prefix, s.row[11]));
    y.row[12] = results(combine_each(prefix, s.row[12]));
    y.row[13] = results(combine_each(prefix, s.row[13]));
    y.row[14] = results(combine_each(prefix, s.row[14]));
    y.row[15] = results(combine_each(prefix, s.row[15]));
    y.row[16] = results(combine_each(prefix, s.row[16]));
    y.row[17] = results(combine_each(prefix, s.row[17]));
    y.row[18] = results(combine_each(prefix, s.row[18]));
    y.row[19] = results(combine_each(prefix, s.row[19]));
    y.row[20] = results(combine_each(prefix, s.row[20]));
    y.row[21] = results(combine_each(prefix, s.row[21]));
    y.row[22] = results(combine_each(prefix, s.row[22]));
    y.row[23] = results(combine_each(prefix, s.row[23]));
    y.row[24] = results(combine_each(prefix, s.row[24]));
    y.row[25] = results(combine_each(prefix, s.row[25]));
    y.row[26] = results(combine_each(prefix, s.row[26]));
    y.row[27] = results(combine_each(prefix, s.row[27]));
    y.row[28] = results(combine_each(prefix, s.row[28]));
    y.row[29] = results(combine_each(prefix, s.row[29]));
    y.row[30] = results(combine_each(prefix, s.row[30]));
    y.row[31] = results(combine_each(prefix, s.row[31]));
    OutputPiece piece;
    piece.item[0] = y.row[0].column[0];
    piece.item[1] = y.row[1].column[0];
    piece.item[2] = y.row[2].column[0];
    piece.item[3] = y.row[3].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 0)) = piece;
    piece.item[0] = y.row[4].column[0];
    piece.item[1] = y.row[5].column[0];
    piece.item[2] = y.row[6].column[0];
    piece.item[3] = y.row[7].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 4)) = piece;
    piece.item[0] = y.row[8].column[0];
    piece.item[1] = y.row[9].column[0];
    piece.item[2] = y.row[10].column[0];
    piece.item[3] = y.row[11].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 8)) = piece;
    piece.item[0] = y.row[12].column[0];
    piece.item[1] = y.row[13].column[0];
    piece.item[2] = y.row[14].column[0];
    piece.item[3] = y.row[15].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 12)) = piece;
    piece.item[0] = y.row[16].column[0];
    piece.item[1] = y.row[17].column[0];
    piece.item[2] = y.row[18].column[0];
    piece.item[3] = y.row[19].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 16)) = piece;
    piece.item[0] = y.row[20].column[0];
    piece.item[1] = y.row[21].column[0];
    piece.item[2] = y.row[22].column[0];
    piece.item[3] = y.row[23].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 20)) = piece;
    piece.item[0] = y.row[24].column[0];
    piece.item[1] = y.row[25].column[0];
    piece.item[2] = y.row[26].column[0];
    piece.item[3] = y.row[27].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 24)) = piece;
    piece.item[0] = y.row[28].column[0];
    piece.item[1] = y.row[29].column[0];
    piece.item[2] = y.row[30].column[0];
    piece.item[3] = y.row[31].column[0];
    *reinterpret_cast<OutputPiece*>(slab + output_place(lane, 28)) = piece;
    __syncwarp();
    const int line = lane / 8, position = lane % 8 * 4;
    first += line * stride + position;
    if (line < lines) *reinterpret_cast<OutputPiece*>(first) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line, position));
    if (line + 4 < lines) *reinterpret_cast<OutputPiece*>(first + 4 * stride) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line + 4, position));
    if (line + 8 < lines) *reinterpret_cast<OutputPiece*>(first + 8 * stride) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line + 8, position));
    if (line + 12 < lines) *reinterpret_cast<OutputPiece*>(first + 12 * stride) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line + 12, position));
    if (line + 16 < lines) *reinterpret_cast<OutputPiece*>(first + 16 * stride) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line + 16, position));
    if (line + 20 < lines) *reinterpret_cast<OutputPiece*>(first + 20 * stride) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line + 20, position));
    if (line + 24 < lines) *reinterpret_cast<OutputPiece*>(first + 24 * stride) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line + 24, position));
    if (line + 28 < lines) *reinterpret_cast<OutputPiece*>(first + 28 * stride) = *reinterpret_cast<const OutputPiece*>(slab + output_place(line + 28, position));
}

__device__ __forceinline__ States lift_row(const InputVector& x) {
    States s;
    s.column[0] = element(x.column[0]);
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
    s.row[17] = lift_row(x.row[17]);
    s.row[18] = lift_row(x.row[18]);
    s.row[19] = lift_row(x.row[19]);
    s.row[20] = lift_row(x.row[20]);
    s.row[21] = lift_row(x.row[21]);
    s.row[22] = lift_row(x.row[22]);
    s.row[23] = lift_row(x.row[23]);
    s.row[24] = lift_row(x.row[24]);
    s.row[25] = lift_row(x.row[25]);
    s.row[26] = lift_row(x.row[26]);
    s.row[27] = lift_row(x.row[27]);
    s.row[28] = lift_row(x.row[28]);
    s.row[29] = lift_row(x.row[29]);
    s.row[30] = lift_row(x.row[30]);
    s.row[31] = lift_row(x.row[31]);
    return s;
}

// Inclusive scan of the rows in place; returns their totals, with the compensation added.
__device__ __forceinline__ States scan_items(Items& s) {
    States lost = {};
    lost = lose_each(lost, s.row[0], s.row[1]);
    s.row[1] = combine_each(s.row[0], s.row[1]);
    lost = lose_each(lost, s.row[1], s.row[2]);
    s.row[2] = combine_each(s.row[1], s.row[2]);
    lost = lose_each(lost, s.row[2], s.row[3]);
    s.row[3] = combine_each(s.row[2], s.row[3]);
    lost = lose_each(lost, s.row[3], s.row[4]);
    s.row[4] = combine_each(s.row[3], s.row[4]);
    lost = lose_each(lost, s.row[4], s.row[5]);
    s.row[5] = combine_each(s.row[4], s.row[5]);
    lost = lose_each(lost, s.row[5], s.row[6]);
    s.row[6] = combine_each(s.row[5], s.row[6]);
    lost = lose_each(lost, s.row[6], s.row[7]);
    s.row[7] = combine_each(s.row[6], s.row[7]);
    lost = lose_each(lost, s.row[7], s.row[8]);
    s.row[8] = combine_each(s.row[7], s.row[8]);
    lost = lose_each(lost, s.row[8], s.row[9]);
    s.row[9] = combine_each(s.row[8], s.row[9]);
    lost = lose_each(lost, s.row[9], s.row[10]);
    s.row[10] = combine_each(s.row[9], s.row[10]);
    lost = lose_each(lost, s.row[10], s.row[11]);
    s.row[11] = combine_each(s.row[10], s.row[11]);
    lost = lose_each(lost, s.row[11], s.row[12]);
    s.row[12] = combine_each(s.row[11], s.row[12]);
    lost = lose_each(lost, s.row[12], s.row[13]);
    s.row[13] = combine_each(s.row[12], s.row[13]);
    lost = lose_each(lost, s.row[13], s.row[14]);
    s.row[14] = combine_each(s.row[13], s.row[14]);
    lost = lose_each(lost, s.row[14], s.row[15]);
    s.row[15] = combine_each(s.row[14], s.row[15]);
    lost = lose_each(lost, s.row[15], s.row[16]);
    s.row[16] = combine_each(s.row[15], s.row[16]);
    lost = lose_each(lost, s.row[16], s.row[17]);
    s.row[17] = combine_each(s.row[16], s.row[17]);
    lost = lose_each(lost, s.row[17], s.row[18]);
    s.row[18] = combine_each(s.row[17], s.row[18]);
    lost = lose_each(lost, s.row[18], s.row[19]);
    s.row[19] = combine_each(s.row[18], s.row[19]);
    lost = lose_each(lost, s.row[19], s.row[20]);
    s.row[20] = combine_each(s.row[19], s.row[20]);
    lost = lose_each(lost, s.row[20], s.row[21]);
    s.row[21] = combine_each(s.row[20], s.row[21]);
    lost = lose_each(lost, s.row[21], s.row[22]);
    s.row[22] = combine_each(s.row[21], s.row[22]);
    lost = lose_each(lost, s.row[22], s.row[23]);
    s.row[23] = combine_each(s.row[22], s.row[23]);
    lost = lose_each(lost, s.row[23], s.row[24]);
    s.row[24] = combine_each(s.row[23], s.row[24]);
    lost = lose_each(lost, s.row[24], s.row[25]);
    s.row[25] = combine_each(s.row[24], s.row[25]);
    lost = lose_each(lost, s.row[25], s.row[26]);
    s.row[26] = combine_each(s.row[25], s.row[26]);
    lost = lose_each(lost, s.row[26], s.row[27]);
    s.row[27] = combine_each(s.row[26], s.row[27]);
    lost = lose_each(lost, s.row[27], s.row[28]);
    s.row[28] = combine_each(s.row[27], s.row[28]);
    lost = lose_each(lost, s.row[28], s.row[29]);
    s.row[29] = combine_each(s.row[28], s.row[29]);
    lost = lose_each(lost, s.row[29], s.row[30]);
    s.row[30] = combine_each(s.row[29], s.row[30]);
    lost = lose_each(lost, s.row[30], s.row[31]);
    s.row[31] = combine_each(s.row[30], s.row[31]);
    return s.row[31] = regain_each(s.row[31], lost);
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

__global__ void __launch_bounds__(256, 2)
scan_kernel(const Input* input, Output* output,
            const __grid_constant__ Geometry geometry, const Neighbours neighbours) {
    dynamic_shared(Ring, ring);
    __shared__ States warp_total[2][8][32];  // by the parity of the tile

    // ---- a block scans 32 neighbouring lines, 256 positions at a time; a warp takes 32 of these
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int place = lane;  // of this thread's lines in the block's panel
    const long long panels = (neighbours.size + 31) / 32;  // the last one may be partial
    const long long other = blockIdx.x / panels;  // index of all other dimensions
    const long long begin = blockIdx.x % panels * 32;
    const int lines = (int)(neighbours.size - begin < 32 ? neighbours.size - begin : 32);
    const long long line = (other / neighbours.lines * neighbours.size + begin) * neighbours.lines + other % neighbours.lines;
    const int first = warp * 32;  // the scan position of this warp's first items
    const Input* x = input + line_offset(line, geometry.rank, geometry.size, geometry.input_stride)
        + first * geometry.input_step;
    Output* y = output + line * 16384 + first;

    // ---- prologue: issue the copies of 2 tiles before the first is scanned
    const auto copy_tile = [&](int tile) {
        if (tile < 64) {
            copy_input(ring.x[tile % 3][warp], lane, x, geometry.input_step, lines);
            x += 256LL * geometry.input_step;
        }
        copy_async_commit();
    };
    copy_tile(0);
    copy_tile(1);

    States carry = identities();  // carry from the tiles before this one
    for (int tile = 0; tile < 64; ++tile) {
        copy_tile(tile + 2);
        copy_async_wait<2>();
        __syncwarp();
        Items s = lift_items(load_input(ring.x[tile % 3][warp], lane));
        __syncwarp();

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
        if (warp == 4) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][4][place]);
        if (warp == 5) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][5][place]);
        if (warp == 6) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][6][place]);
        if (warp == 7) prefix = carry;
        carry = combine_each(carry, warp_total[tile % 2][7][place]);

        // ---- store
        store_items(reinterpret_cast<Output*>(ring.x[tile % 3][warp]), lane, y, neighbours.lines * 16384, lines, prefix, s);
        y += 256;
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
    const long long blocks = arguments->lines / neighbours.size * ((neighbours.size + 31) / 32);
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.stream = (cudaStream_t)stream;
    config.dynamicSmemBytes = 98304;
    const cudaError_t allowed =
        cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304);
    if (allowed != cudaSuccess) return failed(allowed);
    return failed(cudaLaunchKernelEx(&config, scan_kernel,
                                     (const Input*)arguments->input, (Output*)arguments->output, arguments->geometry, neighbours));
}
#endif
