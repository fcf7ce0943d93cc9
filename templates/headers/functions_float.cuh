// Functions of expressions, in float.
#pragma once
#include "headers/approximations.cuh"

// exp(x) for results of half types, whose precision is 2^-11: a relative error of about (3 + |x|) 2^-23.
__device__ __forceinline__ Value short_exp(Value x) { return exp2_of(x * 1.44269504f); }

__device__ __forceinline__ Value ratio(Value a, Value b) {  // exp(min(a, b) - max(a, b)); 1 for equal infinities
    return exp(a == b ? 0 : -fabs(a - b));
}

// The sum of the terms beside the greatest, in fractions of it, with one more: `ratio` is the lesser of the new term and
// the greatest so far, in fractions of the other. As an argument it is computed once, and without a branch.
__device__ __forceinline__ Value add_term(Value rest, bool exceeds, Value ratio) {
    return fma(rest, exceeds ? ratio : 1, ratio);
}

__device__ __forceinline__ Value exp_difference(Value a, Value b) { return exp(a - b); }

// exp(a - b) with a relative error of about (2 + 0.6 |a - b|) 2^-23.
__device__ __forceinline__ Value near_exp(Value a, Value b) { return exp2_of((a - b) * 1.44269504f); }

// near_exp(a, b), and 1 for equal infinities.
__device__ __forceinline__ Value near_ratio(Value a, Value b) {
    const Value of_others = near_exp(a, b);
    return a == b ? 1 : of_others;
}

// high + log(1 + rest). With 1 + rest = 2^k (1 + f), -0.25 <= f < 0.5: the polynomial of log(1 + f) has a relative
// error of at most 2.8e-8. The logarithm of 0 is arbitrary and finite: it is added to an infinity.
__device__ __forceinline__ Value plus_log(Value high, Value rest) {
    const int twos = (int)((__float_as_uint(1 + rest) - 0x3f400000u) & 0xff800000u);  // k, in the bits of the exponent
    const Value unit = __uint_as_float(0x3f800000u - (unsigned)twos);
    const Value f = fma(rest, unit, unit - 1);
    Value p = fma((Value)0.054131854, f, (Value)-0.12067317);
    p = fma(p, f, (Value)0.14983916);
    p = fma(p, f, (Value)-0.16822818);
    p = fma(p, f, (Value)0.19977078);
    p = fma(p, f, (Value)-0.24993442);
    p = fma(p, f, (Value)0.3333355);
    p = fma(p, f, (Value)-0.5000006);
    if constexpr (kSeveralTiles) {
        // Times log(2) / 2^23. The rounding error of this sum is small beside those of the totals of tiles.
        return high + fma((Value)twos, (Value)8.2629582e-8, fma(f * f, p, f));
    } else {
        // log(2) / 2^23 in two parts: the first one times twos is exact, and so is what its sum with high loses. So the
        // result is rounded nearly once.
        const Value high_part = (Value)8.2654878e-8, low_part = (Value)-2.5295548e-11;
        const Value sum = fma((Value)twos, high_part, high);
        const Value lost = fma((Value)twos, low_part, high - fma((Value)twos, -high_part, sum));
        return sum + (fma(f * f, p, f) + fmin(lost, (Value)1));  // NaN beside an infinity
    }
}

__device__ __forceinline__ Value plus_carried_log(Value high, Value rest) { return plus_log(high, rest); }

// log(1 + r) / r for 0 <= r <= 1/16, with a relative error of at most 4.2e-8.
__device__ __forceinline__ Value near_log(Value r) {
    return fma(fma(fma((Value)-0.22675297, r, (Value)0.33244881), r, (Value)-0.49998912), r, (Value)1);
}

// high + log(1 + rest), where 1 + rest exceeds 1 + first by a sixteenth at most. What depends on high and first alone
// is computed once for all results of a thread.
__device__ __forceinline__ Value plus_near_log(Value high, Value first, Value rest) {
    const Value inverse = reciprocal_of(1 + first), r = fma(rest, inverse, -first * inverse);
    return high + fma(r, near_log(r), plus_log(0, first));
}
