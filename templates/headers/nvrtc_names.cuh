// Names that NVRTC has no headers for.
#pragma once

#ifdef __CUDACC_RTC__  // names in operators' expressions that NVRTC has no headers for
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define INT_MAX 2147483647
#define M_PI 3.14159265358979323846
typedef long int64_t;
typedef unsigned int uint32_t;
#endif
