//@ load
// All accesses of a thread.
__device__ __forceinline__ Accesses load(const RowPart& part, const Row& row, const Geometry&) {
    Accesses a;
    for_each_operand(
        [&](auto layout, auto& to, auto* from) {
            if constexpr (!layout.kIsRepeated) read_realigned(to, part, from);
        },
        a, row.from);
    return a;
}
