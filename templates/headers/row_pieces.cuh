// Outputs wider than inputs: the lanes of a warp exchange pieces of results, so that their stores are coalesced.
#pragma once

// Store the results of access j of a warp; `to`: where this lane's are.
__device__ __forceinline__ void store_pieces(Output* to, const RowPart& part, int j, const Results& r,
                                             Vector<Output, kItemsPerStore>* pieces) {
#pragma unroll
    for (int k = 0; k < kStoresPerLoad; ++k)
        pieces[access_place<kStoresPerLoad>(part.lane * kStoresPerLoad + k)] = r.y[k];
    __syncwarp();
    to += kReverse ? kItemsPerLoad - kItemsPerStore : 0;  // the first piece in scan order
#pragma unroll
    for (int k = 0; k < kStoresPerLoad; ++k) {
        const int further =
            j * kStripeItems + k * kWarpThreads * kItemsPerStore - part.lane * (kItemsPerLoad - kItemsPerStore);
        const Position at = part.first + further;
        const Vector<Output, kItemsPerStore>& y = pieces[access_place<kStoresPerLoad>(kWarpThreads * k + part.lane)];
        if (kBoundaryItems > 0 || at < part.end) store_access(to + along(further), y, at, part.end);
    }
    __syncwarp();
}
