// A column tile: kTileColumns columns, of which a thread takes kThreadColumns; its rows in tiles of kTileItems.
#pragma once

inline constexpr int kTileColumns = kLanes * kThreadColumns;
inline constexpr int kTileItems = kBlockThreads / kLanes * kRunItems;
inline constexpr int kWarpRows = kWarpThreads / kLanes * kRunItems;  // rows in a warp's part of a tile
inline constexpr long long kStep = kReverse ? -kInner : kInner;  // items from one row to the next in scan order
inline constexpr int kPitch = kStridedColumns ? 1 : kThreadColumns;  // columns from one thread to the next
inline constexpr int kSpacing = kStridedColumns ? kLanes : 1;  // columns between those of a thread
inline constexpr int kStride = kExchangesRows ? kWarpThreads / kLanes : 1;  // rows from one access of a thread to its next
static_assert(kWarpThreads % kLanes == 0, "whole rows of a column tile");

// The largest power of two that divides a number of bytes, at most the 16 bytes of the widest access.
__device__ __forceinline__ constexpr int alignment_of(int bytes) { return (bytes & -bytes) < 16 ? bytes & -bytes : 16; }

template <typename Item, int count = kThreadColumns>
struct alignas(alignment_of(count * sizeof(Item))) Access {  // one access: a thread's columns of a row
    Item column[count];
};

template <typename Item>
struct Rows {
    Access<Item> row[kRunItems];
};

typedef Operands<Rows> TileRows;  // a thread's rows of a tile, of every operand with an item per row

template <class Item>
using OneRow = Access<Item>;

typedef Outputs<OneRow> Results;  // of a thread's columns in one row

typedef Access<State> States;  // one per column
typedef States ThreadState;    // of a row of a thread
