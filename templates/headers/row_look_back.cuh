// Look-back of rows: totals of tiles are folded in groups of 32, by a warp each.
#pragma once
#include "headers/tile_status.cuh"

// Look-back of rows: totals of tiles are folded in groups of 32, by a warp each. Wait for the totals of kBlockWarps
// groups from `group` on, of the tiles of a row that precede tile `index`; `first`: its first tile. Leaves the total of
// each group in group_aggregate.
__device__ __forceinline__ void wait_for_groups(State* group_aggregate, const TileStatus& tile_status, unsigned epoch,
                                                long long first, int group, int index) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads,
              tile = (group + warp) * kWarpThreads + lane;
    State total = tile < index
                      ? wait_for_status(tile_status, epoch, first + tile, load_status(tile_status, first + tile))
                      : identity();
    total = scan_lanes(total, lane);
    __syncthreads();
    if (lane == kWarpThreads - 1) group_aggregate[warp] = total;
    __syncthreads();
}

// Tiles of a row.
__device__ __forceinline__ int tiles_of(Position length) {
    return (int)((length + kMaxLead + kTileItems - 1) / kTileItems);
}
