// Functions that expressions of operators call.
#pragma once

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

// The rounding error of a + b, exact if the sum is finite (Knuth's TwoSum).
__device__ __forceinline__ Value lost_by_sum(Value a, Value b) {
    const Value sum = a + b, of_b = sum - a;
    return (a - (sum - of_b)) + (b - of_b);
}

__device__ __forceinline__ bool is_zero(Value x) { return !(x != 0); }

__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool is_nan(double x) { return x != x; }
template <class Other>
__device__ __forceinline__ bool is_nan(Other) {
    return false;
}
