// What linked GPUs hand on of a thread's columns.
#pragma once

// The states that the previous rank hands on for a thread's columns.
__device__ __forceinline__ States receive_states(const Link& link, unsigned epoch, const Place& at) {
    return each_column(
        [&](int c) { return at.there > c ? receive_state(link, epoch, at.line + c * at.step) : identity(); });
}

// Hand the states of a thread's columns on if these rows hold the lines' last one: `rest` rows remain from the first.
__device__ __forceinline__ void send_states(const Link& link, unsigned epoch, const Place& at, Position rest,
                                            const States& prefix, const Items& s, unsigned long long tickets) {
    if (rest < 1 || rest > kRunItems) return;
    const States last = state_after((int)rest, prefix, s);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
        if (at.there > c) send_state(link, epoch, at.line + c * at.step, last.column[c], tickets);
}
