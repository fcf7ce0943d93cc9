// The ring of tiles in shared memory, of transposed operands.
#pragma once

// Issue this lane's copies of a tile of all operands.
__device__ __forceinline__ void copy(Ring& ring, int stage, const Sources& from, int lines, Position live) {
    const int warp = threadIdx.x / kWarpThreads;
    for_each_operand(
        [&](auto layout, auto& slabs, auto& x) {
            move_slab<false, layout.kIsAlong, layout.kAccess>(slabs[stage][warp].item, x.first, x.pitch, lines, live);
        },
        ring, from);
}

// This thread's rows of a tile that arrived.
__device__ __forceinline__ TileRows staged(Ring& ring, int stage, const Sources&) {
    const int warp = threadIdx.x / kWarpThreads;
    TileRows rows;
    for_each_operand([&](auto layout, auto& to, auto& slabs) { to = load<layout.kIsAlong>(slabs[stage][warp].item); },
                     rows, ring);
    return rows;
}

// `line`: the first of the block's lines.
__device__ __forceinline__ Sources sources_of(const Operands<ConstPointerTo>& operands, const Place& at, long long line,
                                              const Geometry& geometry, const Neighbours& neighbours, Position length) {
    Sources from;
    for_each_operand(
        [&](auto layout, auto& x, auto* begin) {
            const Strides& strides = geometry.operand[layout.kGeometry];
            x = source_of<layout.kIsAlong>(begin + line_offset(line, geometry, strides),
                                           neighbours.operand_stride[layout.kGeometry], strides.step, at.first, length);
        },
        from, operands);
    return from;
}
