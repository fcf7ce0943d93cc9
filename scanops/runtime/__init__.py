"""From a checked request to a launched kernel.

    first call       request -> ScanSpec -> Plan -> text -> binary -> Kernel     call_cache.py, kernels.py
    repeated call    arguments -> launcher -> launch                             call_cache.py, launcher.py

The policy decides what becomes of a miss of the store (policies.py), and may leave a build to a worker (processes.py).
Four caches lie between a call and a launch, looked up in this order:

C++ table (native/)
    Key: options of the call; dtype, sizes, strides, device and 16-byte alignment of each tensor; the multiprocessors of
    the emulated GPU. Value: a launch, or the launches of a backward pass. Holds only calls that the call cache served
    by their own kernel. ``call_cache.forget`` empties it.

call cache (call_cache.py)
    Key: as above, and the policy of the innermost block. Value: the launcher that served the call, or the recipe of a
    backward pass; nothing is checked again. Entries of a stand-in serve until the kernel cache holds the kernel itself.
    At most ``MAX_REMEMBERED`` entries, then emptied. The beginning of a recording and a fork empty it and the C++
    table, by ``call_cache.forget``; nothing is kept while calls are recorded.

kernel cache (kernels.py)
    Key: a ``KernelKey``; for a stand-in, or for PyTorch in place of a kernel, also the policy. Value: the Kernel,
    which keeps its code loaded. At most 4096 entries, then emptied. A fork drops the stand-ins.

store index (store/root.py)
    On disk. Key: short name, target, whether lines are few, the digest of the installed sources, and that of a
    measured plan. Value: the identity of a store entry, which a lookup verifies. Other sources have other keys, so
    no record is stale; a record without its entry is a miss.
"""
