//@ load
// All accesses of a thread.
__device__ __forceinline__ Accesses load(const RowPart& part, const Row& row, const Geometry& geometry) {
    Accesses a;
    for_each_operand(
        [&](auto layout, auto& to, auto* from) {
            if constexpr (!layout.kIsRepeated)
                read_row<(layout.kIsDense || layout.kInRows)>(to, part, from, step_of(layout, geometry));
        },
        a, row.from);
    return a;
}
