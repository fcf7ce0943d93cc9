"""The kernel store: lookup, one build per kernel over all processes, atomic publication, verified loading.

``store`` is the entrance. ``root`` and ``entry`` are its folder and a kernel in it, ``lock`` the build locks;
``packs`` and ``layers`` are the read-only packs below it, ``signatures`` their signatures; ``library`` loads,
``usage`` evicts, ``identity`` says what a kernel is known by.
"""
