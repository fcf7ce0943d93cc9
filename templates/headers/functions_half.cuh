// Functions of expressions, in float, for results of half types.
#pragma once
#include "headers/approximations.cuh"

// exp(x) for results of half types, whose precision is 2^-11: a relative error of about (3 + |x|) 2^-23.
__device__ __forceinline__ Value short_exp(Value x) { return exp2_of(x * 1.44269504f); }

__device__ __forceinline__ Value ratio(Value a, Value b) {  // exp(min(a, b) - max(a, b)); 1 for equal infinities
    return short_exp(a == b ? 0 : -fabs(a - b));
}

// exp(a - b) with a relative error of about (3 + |b|) 2^-23, beside values of half types as great as b.
__device__ __forceinline__ Value near_exp(Value a, Value b) { return exp2_of(fma(a, 1.44269504f, b * -1.44269504f)); }

// high + log(1 + rest), with a relative error of the logarithm of at most 2e-5.
__device__ __forceinline__ Value plus_log(Value high, Value rest) {
    const Value of_little = fma(rest * rest, fma(rest, (Value)0.33333333, (Value)-0.5), rest);
    return high + (rest < (Value)0x1p-6 ? of_little : log2_of(1 + rest) * (Value)0.69314718);
}

// log(1 + r) / r for 0 <= r <= 1/16, with a relative error of at most 1.6e-4.
__device__ __forceinline__ Value near_log(Value r) { return fma((Value)-0.48009682, r, (Value)0.999848); }

// high + log(1 + rest), where 1 + rest exceeds 1 + first by a sixteenth at most. What depends on high and first alone
// is computed once for all results of a thread.
__device__ __forceinline__ Value plus_near_log(Value high, Value first, Value rest) {
    const Value inverse = reciprocal_of(1 + first), r = fma(rest, inverse, -first * inverse);
    return fma(r, near_log(r), high + log2_of(1 + first) * (Value)0.69314718);
}
