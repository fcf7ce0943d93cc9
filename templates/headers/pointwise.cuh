// Functions that PyTorch has and the CUDA math library has not.
#pragma once
#include "headers/approximations.cuh"

// x - y floor(x / y), exact: the sign is that of y, as in torch.remainder.
__device__ __forceinline__ float floor_remainder(float x, float y) {
    const float rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

// The greatest integer n with n y <= x, or of negative y n y >= x, as in torch.floor_divide.
__device__ __forceinline__ float floor_divide(float x, float y) {
    if (y == 0) return x / y;
    const float rest = fmod(x, y);
    float whole = (x - rest) / y;
    whole = rest != 0 && (rest < 0) != (y < 0) ? whole - 1 : whole;
    const float below = floor(whole);
    return whole == 0 ? copysign((float)0, x / y) : whole - below > (float)0.5 ? below + 1 : below;
}

// x - y floor(x / y), exact: the sign is that of y, as in torch.remainder.
__device__ __forceinline__ double floor_remainder(double x, double y) {
    const double rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

// The greatest integer n with n y <= x, or of negative y n y >= x, as in torch.floor_divide.
__device__ __forceinline__ double floor_divide(double x, double y) {
    if (y == 0) return x / y;
    const double rest = fmod(x, y);
    double whole = (x - rest) / y;
    whole = rest != 0 && (rest < 0) != (y < 0) ? whole - 1 : whole;
    const double below = floor(whole);
    return whole == 0 ? copysign((double)0, x / y) : whole - below > (double)0.5 ? below + 1 : below;
}

// log(1 + exp(x)) with an error of at most 3 ulp: log(1 + e) = e (1 + e q(e)) for 0 <= e <= 1.
__device__ __forceinline__ float softplus(float x) {
    const float e = exp(-fabs(x));
    float q = fma(0.005364822689f, e, -0.03006578609f);
    q = fma(q, e, 0.07920452207f);
    q = fma(q, e, -0.137538016f);
    q = fma(q, e, 0.1915365458f);
    q = fma(q, e, -0.2485716343f);
    q = fma(q, e, 0.3332132399f);
    q = fma(q, e, -0.4999964833f);
    return fma(e, fma(q, e, 1.0f), fmax(x, 0.0f));
}

// log(1 + exp(x)) for results of half types, with a relative error of 2^-13.
__device__ __forceinline__ float short_softplus(float x) {
    const float e = exp2_of(fabs(x) * -1.44269504f);
    float q = fma(0.04310623184f, e, -0.161362997f);
    q = fma(q, e, 0.3092247248f);
    q = fma(q, e, -0.4977744818f);
    return fma(e, fma(q, e, 1.0f), fmax(x, 0.0f));
}

// tanh(x) for results of half types, with a relative error of 2^-20.
__device__ __forceinline__ float short_tanh(float x) {
    const float square = x * x;
    const float of_little = fma(fma(square, 0.1315f, -0.33333f), square * x, x);
    return square < 0.04f ? of_little : 1 - 2 * reciprocal_of(1 + exp2_of(x * 2.88539008f));
}
