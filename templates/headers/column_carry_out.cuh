// Carries-out of the columns of a thread.
#pragma once

// Store the carry-out if these rows hold the lines' last one: `rest` rows remain from the first of these; `there`: how
// many lines exist; `step`: items from the carry-out of a line to that of the next.
__device__ __forceinline__ void end_items(Carry* carry_out, long long step, Position rest, int there,
                                          const States& prefix, const Items& s) {
    if (rest < 1 || rest > kRunItems) return;
    const States last = state_after((int)rest, prefix, s);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
        if (there > c) carry_out[c * step] = end_line(last.column[c]);
}
