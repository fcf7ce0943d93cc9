"""CUDA stand-ins for g++: the headers that let a generated kernel run on a machine without a GPU.

A kernel text says ``#include <cuda_runtime.h>``; with ``-I`` on ``HEADER_DIRECTORY`` g++ finds the one here, and the
object is linked with that of ``HOST_SOURCE``. It proves the text's arithmetic, indexing, barriers and warp collectives.
It proves nothing about the memory model or speed.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["HEADER_DIRECTORY", "HOST_SOURCE"]

HEADER_DIRECTORY = Path(__file__).parent
HOST_SOURCE = HEADER_DIRECTORY / "host.cpp"  # what is the same for every kernel: scheduler, fibers, reports
