// The half of the emulator that is the same for every kernel: scheduler, fibers, reports. Compiled once and linked into
// each kernel's library; all of it is hidden there but scanops_emulator_configure.

// glibc's checked longjmp takes a jump to another stack for an error.
#undef _FORTIFY_SOURCE

#include "host/barriers.h"
#include "host/collectives.h"
#include "host/global_memory.h"
#include "host/launch.h"
#include "host/sanitizers.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace scanops_emulator {

Settings settings;
Grid grid;
Thread* current;
Block* loaded_block;

}  // namespace scanops_emulator
