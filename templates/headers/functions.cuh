//@ infinity
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

//@ lost_by_sum
// The rounding error of a + b, exact if the sum is finite (Knuth's TwoSum).
__device__ __forceinline__ Value lost_by_sum(Value a, Value b) {
    const Value sum = a + b, of_b = sum - a;
    return (a - (sum - of_b)) + (b - of_b);
}

//@ is_zero
__device__ __forceinline__ bool is_zero(Value x) { return !(x != 0); }
