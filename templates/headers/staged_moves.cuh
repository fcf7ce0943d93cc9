//@ read_rows
// Copy a warp's rows to shared memory, and return where they begin there. In reverse an item of a complete scan lies
// one place before its result.
__device__ __forceinline__ Rows read_rows(Staged& staged, const Rows& rows, int count, int lane) {
    const Operands<PointerTo> operands = staged.operands();
    const Outputs<PointerTo> outputs = staged.outputs();
    for_each_operand(
        [&](auto layout, auto* to, auto* from) {
            if constexpr (!layout.kIsRepeated) copy_items<true>(to + phase(from), from, count, lane);
        },
        operands, rows.from);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    Rows copied = rows;
    for_each_operand([&](auto, auto& from, auto* to) { from = to + phase(from) - (kComplete && kReverse); },
                     copied.from, operands);
    for_each_output([&](auto& to, auto* from) { to = from + phase(to); }, copied.to, outputs);
    return copied;
}

//@ write_rows
// Copy the results of a warp's rows to global memory.
__device__ __forceinline__ void write_rows(const Rows& rows, Staged& staged, int count, int lane) {
    const Outputs<PointerTo> outputs = staged.outputs();
    __syncwarp();
    for_each_output([&](auto* to, auto* from) { copy_items<false>(to, from + phase(to), count, lane); }, rows.to,
                    outputs);
}

//@ read_vector
template <class Item>
__device__ __forceinline__ Vector<Item> read_vector(const Item* from) {
    return *reinterpret_cast<const Vector<Item>*>(from);
}

//@ otherwise
template <class Item>
__device__ __forceinline__ Vector<Item> otherwise([[maybe_unused]] const Vector<Item> (&loads)[kThreadLoads]) {
    if constexpr (kComplete)
        return {};
    else
        return loads[0];
}

//@ store_vector
template <class Item, int count>
__device__ __forceinline__ void store_vector(Item* to, const Vector<Item, count>& items) {
    *reinterpret_cast<Vector<Item, count>*>(to) = items;
}

//@ read_run
// The accesses of a run that begins with item i of a lane's piece; `rest`: items that remain of the piece.
__device__ __forceinline__ Accesses read_run(const Rows& at, int i, [[maybe_unused]] int rest, int start,
                                             Position length) {
    Accesses a;
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        // Accesses past the piece repeat the first one: no stored result depends on them, and their items are as great
        // as those of the row.
        const bool inside = kComplete ? start + i + j * kItemsPerLoad < length - 1 : j == 0 || j * kItemsPerLoad < rest;
        for_each_operand(
            [&](auto layout, auto& loads, auto* from) {
                if constexpr (!layout.kIsRepeated)
                    loads[j] = inside ? read_vector(from + along(i + j * kItemsPerLoad)) : otherwise(loads);
            },
            a, at.from);
    }
    return a;
}

//@ write_run
__device__ __forceinline__ void write_run(const Rows& at, int i, int rest, const Results& r) {
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        if (j > 0 && j * kItemsPerLoad >= rest) continue;
        for_each_output([&](auto* to, auto& y) { store_vector(to + along(i + j * kItemsPerLoad), y[j]); }, at.to, r);
    }
}
