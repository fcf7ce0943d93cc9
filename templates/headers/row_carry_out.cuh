// The carry-out of a row.
#pragma once

// Store the carry-out if these items hold the line's last one: `rest` items remain from the first of these.
__device__ __forceinline__ void end_items(Carry* carry_out, long long rest, State prefix, const Items& s) {
    if (rest >= 1 && rest <= kRunItems) *carry_out = end_line(state_after((int)rest, prefix, s));
}
