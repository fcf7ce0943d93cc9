// Functions of expressions, in double.
#pragma once
#include "headers/approximations.cuh"

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

__device__ __forceinline__ Value near_exp(Value a, Value b) { return exp(a - b); }

// exp(a - b), and 1 for equal infinities.
__device__ __forceinline__ Value near_ratio(Value a, Value b) { return exp(a == b ? 0 : a - b); }

__device__ __forceinline__ Value plus_log(Value high, Value rest) { return high + log1p(rest); }

__device__ __forceinline__ Value plus_carried_log(Value high, Value rest) { return plus_log(high, rest); }
