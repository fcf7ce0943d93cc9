//@ store_pieces
// ---- outputs wider than inputs: the lanes of a warp exchange pieces of results, so that their stores are coalesced
// Store the results of access j of a warp; `to`: where this lane's are.
__device__ __forceinline__ void store_pieces(Output* to, const Part& part, int j, const Results& r,
                                             Vector<Output, kOutItems>* pieces) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) pieces[access_place<kPieces>(part.lane * kPieces + k)] = r.y[k];
    __syncwarp();
    to += kReverse ? kItems - kOutItems : 0;  // the first piece in scan order
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
        const int further = j * kStripe + k * 32 * kOutItems - part.lane * (kItems - kOutItems);
        const Position at = part.first + further;
        const Vector<Output, kOutItems>& y = pieces[access_place<kPieces>(32 * k + part.lane)];
        if (kBoundary > 0 || at < part.end) store_access(to + along(further), y, at, part.end);
    }
    __syncwarp();
}

