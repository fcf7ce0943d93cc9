//@ place_of
// The place of a thread in a panel, for the tile that begins at a scan position.
__device__ __forceinline__ Place place_of(unsigned panel, Position begin, Position length) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, in_panel = threadIdx.x % kLanes;
    const long long outer = panel / kPanels;
    const long long column = panel % kPanels * (long long)kColumns + in_panel * kPitch;
    const int there = columns_of(kRagged ? (int)min(kInner - column, (long long)kColumns) : kColumns);
    const Position scanned = begin + (int)threadIdx.x / kLanes * kRun;
    const Position first = kExchanged ? begin + warp * kWarpRows + lane / kLanes : scanned;
    const long long line = outer * kInner + column;
    const long long item = (outer * length + memory_index(first, 1, length)) * kInner + column;
    return {lane, warp, in_panel, there, line, kSpacing, item, first, scanned, there > 0 ? length - first : 0};
}

//@ dense
// A dense operand of so many items. flat: a warp's rows are contiguous; `first` is the lowest item in memory of these.
template <bool flat, typename Item>
__device__ __forceinline__ Source<Item> dense(const Item* begin, const Place& at, long long items) {
    const int row = kReverse ? kWarpRows - 1 - at.lane / kLanes : at.lane / kLanes;
    const Item* const own = begin + at.item;
    return {flat ? own - at.in_panel * kVector - row * (long long)kInner : own, kStep, begin, begin + items};
}

