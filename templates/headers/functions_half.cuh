// Functions of expressions, in float, for results of half types.
#pragma once
#include "headers/approximations.cuh"

// exp(x) for results of half types, whose precision is 2^-11: a relative error of about (3 + |x|) 2^-23.
__device__ __forceinline__ Value short_exp(Value x) { return exp2_of(x * 1.44269504f); }

__device__ __forceinline__ Value ratio(Value a, Value b) {  // exp(min(a, b) - max(a, b)); 1 for equal infinities
    const Value of_others = short_exp(-fabs(a - b));
    return a == b ? 1 : of_others;
}

// The sum of the terms beside the greatest, in fractions of it, with one more: `ratio` is the lesser of the new term and
// the greatest so far, in fractions of the other. As an argument it is computed once, and without a branch.
__device__ __forceinline__ Value add_term(Value rest, bool exceeds, Value ratio) {
    return fma(rest, exceeds ? ratio : 1, ratio);
}

// exp(a - b) with a relative error of about (3 + |b|) 2^-23, beside values of half types as great as b.
__device__ __forceinline__ Value near_exp(Value a, Value b) { return exp2_of(fma(a, 1.44269504f, b * -1.44269504f)); }

__device__ __forceinline__ Value exp_difference(Value a, Value b) { return near_exp(a, b); }

// near_exp(a, b), and 1 for equal infinities.
__device__ __forceinline__ Value near_ratio(Value a, Value b) {
    const Value of_others = near_exp(a, b);
    return a == b ? 1 : of_others;
}

// high + log(1 + rest), with a relative error of the logarithm of at most 2e-5.
__device__ __forceinline__ Value plus_log(Value high, Value rest) {
    const Value of_little = fma(rest * rest, fma(rest, (Value)0.33333333, (Value)-0.5), rest);
    const Value of_others = log2_of(1 + rest) * (Value)0.69314718;
    return high + (rest < (Value)0x1p-6 ? of_little : of_others);
}

// high + log(1 + rest) for a carry-out. It is float32, as the next chunk of a stream and other ranks continue from it; the
// states that it follows from are as exact as that, within some units of its last place.
__device__ __forceinline__ Value plus_carried_log(Value high, Value rest) { return high + log1p(rest); }

// log(1 + r) / r for 0 <= r <= 1/16, with a relative error of at most 1.6e-4.
__device__ __forceinline__ Value near_log(Value r) { return fma((Value)-0.48009682, r, (Value)0.999848); }

// high + log(1 + rest), where 1 + rest exceeds 1 + first by a sixteenth at most. What depends on high and first alone
// is computed once for all results of a thread.
__device__ __forceinline__ Value plus_near_log(Value high, Value first, Value rest) {
    const Value inverse = reciprocal_of(1 + first), r = fma(rest, inverse, -first * inverse);
    return fma(r, near_log(r), high + log2_of(1 + first) * (Value)0.69314718);
}
