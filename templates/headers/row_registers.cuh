//@ fetch
template <class To>
__device__ __forceinline__ void fetch(To* to, const void* from) {
    *to = *static_cast<const To*>(from);
}

//@ slot_of
// Where a thread keeps access j, and access j of an operand whose lanes share accesses.
__device__ __forceinline__ int slot_of(int j, int) { return j; }

//@ shifted_slot_of
__device__ __forceinline__ int shifted_slot_of(int j) { return j; }
