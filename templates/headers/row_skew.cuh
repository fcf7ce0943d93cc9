//@
// ---- operands misaligned relative to the output: aligned accesses, `skew` items earlier in scan order
//@ skew_of
// Items from the boundary of an access that precedes an address in scan order.
template <class Item>
__device__ __forceinline__ int skew_of(const Item* first) {
    const int items = (int)((size_t)first / sizeof(Item));
    return (kReverse ? -items : items) & (kItemsPerLoad - 1);
}

//@ next_lane
// The access after a lane's own is the next lane's; the first lane holds `later`, the last lane's.
template <class Vector, int count = (sizeof(Vector) + 3) / 4>
__device__ __forceinline__ Vector next_lane(const Vector& own, const Vector& later, int lane, int lanes = kLanes) {
    constexpr int last_words = sizeof(Vector) / kItemsPerLoad / 4;  // of the last item, which no shift brings in
    unsigned words[count] = {}, later_words[count] = {};
    memcpy(words, &own, sizeof(Vector));
    memcpy(later_words, &later, sizeof(Vector));
#pragma unroll
    for (int k = kReverse ? last_words : 0; k < (kReverse ? count : count - last_words); ++k)
        words[k] = __shfl_sync(kFullMask, lane > 0 ? words[k] : later_words[k], lane + 1, lanes);
    Vector next;
    memcpy(&next, words, sizeof(Vector));
    return next;
}

//@ realign_vectors
// The items of one output access: those of `access` from the skew on, then the first of the `next` in scan order.
template <class Item>
__device__ __forceinline__ Vector<Item> realign_vectors(const Vector<Item>& access, const Vector<Item>& next,
                                                        int skew) {
    return kReverse ? realign<kItemsPerLoad>(next, access, kItemsPerLoad - skew)
                    : realign<kItemsPerLoad>(access, next, skew);
}
