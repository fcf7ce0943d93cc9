// Shared memory that the launch sizes.
#pragma once

#ifdef __CUDACC__
// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                              \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)
#endif
