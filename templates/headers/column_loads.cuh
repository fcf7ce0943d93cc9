// Loads of a thread's rows to registers.
#pragma once

// Rows that do not exist read an operand's first access instead of none. With a second operand ptxas issues guarded
// loads a few at a time, each with its use: masked 64 x 4096 x 1024 falls to 0.65 of a copy (H200).
inline constexpr bool kStandsIn = kSeveralOperands && !kStridedColumns && !kRealigns;

template <bool uneven, bool per_step, typename Item>
__device__ __forceinline__ Rows<Item> load_rows(const Source<Item>& x, Position live, int there) {
    constexpr bool stands_in = kStandsIn && (kPartialColumns || uneven);
    Rows<Item> rows = {};
    const Item* from = x.first;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k, from += x.step) {
        if constexpr (per_step) {
            if (stands_in || is_live<uneven>(live, k))
                rows.row[k] = repeat(is_live<uneven>(live, k) ? *from : *x.begin);
        } else if constexpr (kStridedColumns) {
#pragma unroll
            for (int c = 0; c < kThreadColumns; ++c)
                if (is_live<uneven>(live, k) && (!kStridedColumns || !kPartialColumns || there > c))
                    rows.row[k].column[c] = from[c * kSpacing];
        } else if (stands_in || is_live<uneven>(live, k)) {
            rows.row[k] = *reinterpret_cast<const Access<Item>*>(is_live<uneven>(live, k) ? from : x.begin);
        }
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
