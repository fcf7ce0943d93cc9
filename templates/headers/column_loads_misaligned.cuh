// Loads of rows that begin between the boundaries of vector loads.
#pragma once

// The items at a misaligned address span two accesses, the second of which is the next lane's first.
template <typename Item>
__device__ __forceinline__ Access<Item> read_misaligned(const Item* from) {
    const int skew = skew_of<sizeof(Access<Item>)>(from);
    const Access<Item>* const access = reinterpret_cast<const Access<Item>*>(from - skew);
    return realign<kThreadColumns>(access[0], access[1], skew);
}

template <bool uneven, bool per_step, typename Item>
__device__ __forceinline__ Rows<Item> load_rows(const Source<Item>& x, Position live, int) {
    Rows<Item> rows = {};
    const Item* from = x.first;
    if constexpr (per_step) {
#pragma unroll
        for (int k = 0; k < kRunItems; ++k, from += x.step)
            if (is_live<uneven>(live, k)) rows.row[k] = repeat(*from);
        return rows;
    }
    const Item* const last = from + (kRunItems - 1) * x.step;
    const Item *const lowest = kReverse ? last : from, *const highest = kReverse ? from : last;
    const bool inside =
        lowest >= x.begin + kThreadColumns - 1 && highest + 2 * kThreadColumns <= x.end;  // all items of its accesses
    if (is_live<uneven>(live, kRunItems - 1) && inside) {
#pragma unroll
        for (int k = 0; k < kRunItems; ++k, from += x.step) rows.row[k] = read_misaligned(from);
        return rows;
    }
#pragma unroll
    for (int k = 0; k < kRunItems; ++k, from += x.step) {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            if (is_live<uneven>(live, k)) rows.row[k].column[c] = from[c * kSpacing];
    }
    return rows;
}

// A thread's rows of a tile of all operands.
__device__ __forceinline__ TileRows load(const Sources& from, Position live, int there) {
    TileRows rows;
    for_each_operand(
        [&](auto layout, auto& to, auto& x) {
            to = load_rows<(kUneven || layout.kShift > 0), layout.kIsPerStep>(x, live - layout.kShift, there);
        },
        rows, from);
    return rows;
}
