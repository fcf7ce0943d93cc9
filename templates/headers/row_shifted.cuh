// Rows that are aligned differently from the output's: aligned vector loads, `skew` items earlier in scan order, are
// shifted into place.
#pragma once
#include "headers/realign.cuh"

// Items from the boundary of an access that precedes an address in scan order.
template <class Item>
__device__ __forceinline__ int skew_of(const Item* first) {
    const int items = (int)((size_t)first / sizeof(Item));
    return (kReverse ? -items : items) & (kItemsPerLoad - 1);
}

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

// The items of one output access: those of `access` from the skew on, then the first of the `next` in scan order.
template <class Item>
__device__ __forceinline__ Vector<Item> realign_vectors(const Vector<Item>& access, const Vector<Item>& next,
                                                        int skew) {
    return kReverse ? realign<kItemsPerLoad>(next, access, kItemsPerLoad - skew)
                    : realign<kItemsPerLoad>(access, next, skew);
}

// Read accesses to rows that are aligned differently from the output, and return the skew. The first lane makes the
// access after the last lane's, too.
template <class Layout, class Item>
__device__ __forceinline__ int read_shifted(Layout layout, Vector<Item>* to, const RowPart& part, const Item* from) {
    const int skew = skew_of(from), reads = part.accesses + (part.lane == 0 && skew > 0);
#pragma unroll
    for (int n = 0; n < kThreadReads; ++n) {
        const int j = place_of(n, kThreadReads);
        Vector<Item>& access = to[shifted_slot_of(j)];
        if (part.live && (kThreadReads == kThreadLoads || j < reads))
            read_access<true, true>(&access, from + along(j * part.step - skew), 1, part.at(j) + layout.kShift - skew,
                                    items_in(part.length));
        else if (j < kThreadLoads)  // in shared memory only the first lane has a place for one more
            leave_out(access);
    }
    return skew;
}

// Accesses to rows that are aligned differently from the output, as if they were not.
template <class Item>
__device__ __forceinline__ void read_realigned(Vector<Item>* a, const RowPart& part, const Item* from) {
    Vector<Item> shifted[kThreadReads];
    const int skew = read_shifted(OperandLayout<0, 0, 0>(), shifted, part, from);
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        const Vector<Item>& later = shifted[j + 1 < kThreadReads ? j + 1 : j];
        a[j] = realign_vectors(shifted[j], kLanes == 1 ? later : next_lane(shifted[j], later, part.lane, part.lanes),
                               skew);
    }
}
