// Results of a thread's items as vectors.
#pragma once

// Results of consecutive items, given the prefix before them.
__device__ __forceinline__ Results make_results(State prefix, const Items& s) {
    Results r;
    each_result(prefix, s, [&](int k, Result result) {
        const int at = place_of(k % kItemsPerStore, kItemsPerStore);
        for_each_output([&](auto& to, auto& from) { to[k / kItemsPerStore].item[at] = from; }, r, result);
    });
    return r;
}
