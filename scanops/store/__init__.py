"""The kernel store: lookup, one build per kernel over all processes, atomic publication, verified loading.

``store`` is the entrance. ``root`` is its folder with index and build locks, ``entry`` a kernel in it. ``library``
loads a kernel, ``driver`` launches cubins, ``usage`` evicts entries. ``layers`` are the read-only packs below the
store, ``packs`` their contents, ``signatures`` their signatures; ``packing`` and ``archive`` make them.
"""
