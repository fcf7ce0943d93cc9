// Where misaligned addresses lie.
#pragma once

// Items by which an address lies after the boundary of so many bytes.
template <int bytes, typename Item>
__device__ __forceinline__ int skew_of(const Item* address) {
    return (int)((size_t)address / sizeof(Item)) & (int)(bytes / sizeof(Item) - 1);
}
