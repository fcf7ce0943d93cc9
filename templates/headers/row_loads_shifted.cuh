//@ read_shifted
// Read accesses to rows that are aligned differently from the output, and return the skew. The first lane makes the
// access after the last lane's, too.
template <int shift = 0, class Item>
__device__ __forceinline__ int read_shifted(Vector<Item>* to, const RowPart& part, const Item* from) {
    const int skew = skew_of(from), reads = part.accesses + (part.lane == 0 && skew > 0);
#pragma unroll
    for (int n = 0; n < kThreadReads; ++n) {
        const int j = place_of(n, kThreadReads);
        Vector<Item>& access = to[shifted_slot_of(j)];
        if (part.live && (kThreadReads == kThreadLoads || j < reads))
            read_access<true, true>(&access, from + along(j * part.step - skew), 1, part.at(j) + shift - skew,
                                    items_in(part.length));
        else if (j < kThreadLoads)  // in shared memory only the first lane has a place for one more
            leave_out(access);
    }
    return skew;
}

//@ read_realigned
// Accesses to rows that are aligned differently from the output, as if they were not.
template <class Item>
__device__ __forceinline__ void read_realigned(Vector<Item>* a, const RowPart& part, const Item* from) {
    Vector<Item> shifted[kThreadReads];
    const int skew = read_shifted(shifted, part, from);
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        const Vector<Item>& later = shifted[j + 1 < kThreadReads ? j + 1 : j];
        a[j] = realign_vectors(shifted[j], kLanes == 1 ? later : next_lane(shifted[j], later, part.lane, part.lanes),
                               skew);
    }
}
