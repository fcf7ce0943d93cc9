//@ receive_lines
// The states that the previous rank hands on for a thread's columns.
__device__ __forceinline__ States receive_lines(const Link& link, unsigned launch, const Place& at) {
    return each_column([&](int c) {
        return at.there > c ? receive(link, launch, at.line + c * at.step) : identity();
    });
}

//@ hand_on_lines
// Hand the states of a thread's columns on if these rows hold the lines' last one: `rest` rows remain from the first.
__device__ __forceinline__ void hand_on_lines(const Link& link, unsigned long long* next_rank, unsigned launch,
                                              const Place& at, Position rest, const States& prefix, const Items& s,
                                              unsigned long long tickets) {
    if (rest < 1 || rest > kRun) return;
    const States last = state_after((int)rest, prefix, s);
#pragma unroll
    for (int c = 0; c < kVector; ++c)
        if (at.there > c) hand_on(link, next_rank, launch, at.line + c * at.step, last.column[c], tickets);
}

