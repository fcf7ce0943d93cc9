"""CUDA stand-ins for g++: the headers that let a generated kernel run on a machine without a GPU.

A kernel text says ``#include <cuda_runtime.h>``; with ``-I`` on ``HEADER_DIRECTORY`` g++ finds the one here. It proves
the text's arithmetic, indexing, barriers and warp collectives. It proves nothing about the memory model or speed.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["HEADER_DIRECTORY", "headers"]

HEADER_DIRECTORY = Path(__file__).parent


def headers() -> dict[str, str]:
    """Name and text of every emulator header, in sorted order: part of what an emulated library is made from."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(HEADER_DIRECTORY.glob("*.h"))}
