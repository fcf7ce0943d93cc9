// Functions of expressions of complex numbers.
#pragma once

// Like their real counterparts, these avoid the cancellation of forming 1 + z.
__device__ __forceinline__ Value exp_difference(Value a, Value b) {  // exp(a - b); equal infinities differ by 0
    const auto size = exp(a.re == b.re ? 0 : a.re - b.re);
    return {size * cos(a.im - b.im), size * sin(a.im - b.im)};
}

__device__ __forceinline__ Value both_nan(Value z) {  // NaN in both parts if one part is NaN
    const auto sum = z.re + z.im;
    return z.re == z.re && z.im == z.im ? z : Value{sum, sum};
}

__device__ __forceinline__ Value log1p(Value z) {        // log(1 + z)
    const auto above = z.re * (2 + z.re) + z.im * z.im;  // |1 + z|^2 - 1
    const auto size = 2 * above > -1 ? ::log1p(above) / 2 : log(hypot(1 + z.re, z.im));
    return {size, atan2(z.im, 1 + z.re)};
}
