// Functions of expressions, in double.
#pragma once
#include "headers/approximations.cuh"

__device__ __forceinline__ Value short_exp(Value x) { return exp2_of(x * 1.44269504f); }

__device__ __forceinline__ Value ratio(Value a, Value b) {  // exp(min(a, b) - max(a, b)); 1 for equal infinities
    return exp(a == b ? 0 : -fabs(a - b));
}

__device__ __forceinline__ Value near_exp(Value a, Value b) { return exp(a - b); }

__device__ __forceinline__ Value plus_log(Value high, Value rest) { return high + log1p(rest); }
