// What g++ includes when a generated kernel says <cuda_runtime.h>: CUDA threads as fibers of one OS thread.
//
//   qualifiers.h     __global__, __shared__ and the other words of CUDA C++
//   types.h          dim3, cudaError_t, threadIdx and friends
//   barriers.h       __syncthreads
//   collectives.h    shuffles, votes, __syncwarp
//   global_memory.h  atomics, flags, asynchronous copies, cached loads
//   numbers.h        half and bfloat16, bit casts, shifts of two words, min and max
//   mathematics.h    exp, log and so on, for float and double
//   launch.h         the host API
//
// These are what depends on the kernel's text, and include little, because every kernel is compiled with them. The rest
// is host.cpp, compiled once:
//
//   host/state.h           what a thread, a warp and a block of the running grid are doing
//   host/report.h         the one report that stops a launch
//   host/fibers.h         stacks and switches between them
//   host/schedule.h       who runs next; shared memory of the resident blocks
//   host/sanitizers.h     handlers that g++'s -fsanitize calls
//   host/launch.h         the grid loop
//   host/barriers.h, host/collectives.h, host/global_memory.h: the rest of their namesakes
//
// Compile with: -std=c++20 -Og -finline-functions-called-once -fPIC -fwrapv -fno-strict-aliasing -ffp-contract=off
//               -fsanitize=bounds-strict,alignment,float-cast-overflow
//               -fno-sanitize-recover=bounds-strict,alignment
// Link with host.cpp and without -fsanitize: the handlers are there and libubsan is not wanted.
#pragma once
#pragma GCC system_header  // generated text is compiled with -Wall -Wextra -Wconversion -Werror; this is not

#include "qualifiers.h"
#include "types.h"
#include "barriers.h"
#include "collectives.h"
#include "global_memory.h"
#include "numbers.h"
#include "mathematics.h"
#include "launch.h"
