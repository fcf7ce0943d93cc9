"""The kernel store: lookup, one build per kernel over all processes, atomic publication, verified loading.

``store`` is the entrance. ``root``, ``entry``, ``index`` and ``lock`` are its folder, a kernel in it, the index and the
build locks; ``layers`` and ``packs`` are the read-only packs below it, ``trust`` and ``signatures`` their signatures;
``library`` loads, ``usage`` evicts, ``identity`` says what a kernel is known by.
"""
