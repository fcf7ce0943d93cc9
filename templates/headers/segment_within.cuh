// Results before items of segments.
#pragma once

// Combine an item with the prefix before it in its own segment.
__device__ __forceinline__ State within(State before, State own) {
    if constexpr (!kResumes)
        if ((kFlagsEndSegments ? before : own).bounds & 2) before = identity();
    return {unsegmented::within(before.plain, own.plain), before.bounds};
}
