// Items that a thread loads or stores at once.
#pragma once

inline constexpr int kMostAccessBytes = 16;  // of a load or store of a thread

// ---- a vector load holds items in memory order, Items hold states in scan order
template <class Item, int count = kItemsPerLoad>
struct alignas(count * sizeof(Item)) Vector {
    static_assert((count & (count - 1)) == 0 && sizeof(Item) * count <= kMostAccessBytes, "an access is one instruction");
    Item item[count];
};

// Offset in memory to an item so many items further in scan order.
__device__ __forceinline__ constexpr Position along(Position items) { return kReverse ? -items : items; }

// Place of a vector in shared memory: free of bank conflicts in order, and where each lane has `run` consecutive ones.
template <int run>
__device__ __forceinline__ int access_place(int number) {
    return number ^ (number >> 3 & (run - 1));
}
