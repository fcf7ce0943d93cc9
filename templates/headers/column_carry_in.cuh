// Carries-in of the columns of a thread.
#pragma once

// The carry-in of the thread's lines, of which `there` exist; `step`: items from that of a line to that of the next.
__device__ __forceinline__ States begin_lines(const Carry* carry_in, long long step, int there) {
    return each_column([&](int c) { return there > c ? begin_line(carry_in + c * step) : identity(); });
}
