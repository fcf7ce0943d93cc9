// The lanes of a warp exchange vectors, so that the items of a lane are consecutive.
#pragma once

struct alignas(kExchangedBytes) Exchanged {  // a vector of any operand or output
    unsigned char bytes[kExchangedBytes];
};

// Neighbouring lanes load neighbouring vectors, and scan runs of consecutive ones: so a warp scans across its lanes
// once, not once for each vector. `slots`: places in shared memory for the vectors of the warp.
template <class Held, class Slot>
__device__ __forceinline__ void exchange_to_runs(Held (&held)[kThreadLoads], Slot* slots, int lane) {
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane + kWarpThreads * j)]) = held[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        held[j] = reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane * kThreadLoads + j)]);
}

template <class Held, class Slot>
__device__ __forceinline__ void exchange_back(Held (&held)[kThreadLoads], Slot* slots, int lane) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane * kThreadLoads + j)]) = held[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        held[j] = reinterpret_cast<Held&>(slots[access_place<kBankPeriod>(lane + kWarpThreads * j)]);
}

__device__ __forceinline__ void exchange_operands(Accesses& a, Exchanged* slots, int lane) {
    for_each_operand(
        [&](auto layout, auto& held) {
            if constexpr (!layout.kIsFirst) __syncwarp();  // all lanes have read the vectors of the operand before
            exchange_to_runs(held, slots, lane);
        },
        a);
}

__device__ __forceinline__ void exchange_results(Results& r, Exchanged* slots, int lane) {
    for_each_output([&](auto& held) { exchange_back(held, slots, lane); }, r);
}
