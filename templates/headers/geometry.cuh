// Operands with strides of their own.
#pragma once

inline constexpr int kMostDims = 24;  // of a tensor with strides of its own

// ---- operands with strides: sizes and strides, in items, of the dimensions that are not scanned
struct Strides {
    long long stride[kMostDims], step;  // a step is the stride of the scanned dimension
};

struct Geometry {
    int rank;
    long long size[kMostDims];
    Strides operand[kStridedOperands];
};

__device__ __forceinline__ long long line_offset(long long line, const Geometry& geometry, const Strides& strides) {
    long long offset = 0;
    for (int d = geometry.rank - 1; d >= 0; --d) {
        const long long rest = line / geometry.size[d];  // one division: it takes dozens of instructions
        offset += (line - rest * geometry.size[d]) * strides.stride[d];
        line = rest;
    }
    return offset;
}
