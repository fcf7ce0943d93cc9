"""The kernel store: lookup, one build per kernel over all processes, atomic publication, verified loading.

``store`` is the entrance. ``root`` is its folder with index and build locks, ``entry`` a kernel in it. ``layers`` are
the read-only packs below it, ``packs`` their contents, ``signatures`` their signatures. ``library`` loads a kernel,
``usage`` evicts it.
"""
