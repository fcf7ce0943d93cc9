// What g++ includes when a generated kernel says <cuda_runtime.h>: CUDA threads as fibers of one OS thread.
//
//   qualifiers.h     __global__, __shared__ and the other words of CUDA C++
//   types.h          dim3, cudaError_t, the launch configuration, threadIdx and friends
//   state.h          what a thread, a warp and a block of the running grid are doing
//   report.h         the one report that stops a launch
//   fibers.h         stacks and switches between them
//   schedule.h       who runs next; shared memory of the resident blocks
//   barriers.h       __syncthreads
//   collectives.h    shuffles, votes, __syncwarp
//   global_memory.h  atomics, flags, asynchronous copies, cached loads
//   numbers.h        half and bfloat16, bit casts, shifts of two words, min and max
//   sanitizers.h     handlers that g++'s -fsanitize=bounds-strict,alignment calls
//   launch.h         the grid loop and the host API
//
// Compile with: -std=c++20 -O1 -fPIC -fwrapv -fno-strict-aliasing -ffp-contract=off -fsanitize=bounds-strict,alignment
// Link without -fsanitize: the handlers are here and libubsan is not wanted.
#pragma once
#pragma GCC system_header  // generated text is compiled with -Wall -Wextra -Wconversion -Werror; this is not

// glibc's checked longjmp takes a jump to another stack for an error.
#undef _FORTIFY_SOURCE

#include "qualifiers.h"
#include "types.h"
#include "state.h"
#include "report.h"
#include "fibers.h"
#include "schedule.h"
#include "barriers.h"
#include "collectives.h"
#include "global_memory.h"
#include "numbers.h"
#include "sanitizers.h"
#include "launch.h"
