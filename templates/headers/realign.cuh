// Items of misaligned operands.
#pragma once
#include "headers/warp.cuh"

// Misaligned operands are read by aligned accesses: the items from `skew` on of two accesses, adjacent in memory, of so
// many items each, are shifted by 32-bit words, then within them. Where lines are scanned in reverse, `skew` may be a
// whole access.
template <int items, class Aligned>
__device__ __forceinline__ Aligned realign(const Aligned& lower, const Aligned& upper, int skew) {
    const Aligned both[2] = {lower, upper};
    constexpr int bytes = sizeof(Aligned), words = (bytes + 3) / 4, item_bytes = bytes / items;
    const int shift = 8 * item_bytes * skew;  // bits
    unsigned word[2 * words + 1] = {};
    memcpy(word, both, sizeof(both));
#pragma unroll
    for (int distance = kReverse ? words : words / 2; distance > 0; distance /= 2)
        if (shift & kWordBits * distance)
#pragma unroll
            for (int w = 0; w + distance < 2 * words; ++w) word[w] = word[w + distance];
#pragma unroll
    for (int w = 0; w < words; ++w)
        if (item_bytes < 4) word[w] = __funnelshift_r(word[w], word[w + 1], shift);
    Aligned result;
    memcpy(&result, word, bytes);
    return result;
}
