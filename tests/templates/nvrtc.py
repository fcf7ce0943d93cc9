"""NVRTC 12 from its wheel, through ctypes: a compiler that needs no GPU, no driver and no host compiler."""

from __future__ import annotations

import ctypes
import sysconfig
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Nvrtc"]

LIBRARY = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"  # under site-packages

DEPRECATED = "Architectures prior to"  # NVRTC 12.9 on what CUDA 13 no longer knows: the reason it is asked at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvrtc:
    """A loaded NVRTC."""

    library: ctypes.CDLL

    @classmethod
    def find(cls) -> Nvrtc | None:
        """The wheel's library; None when it is not installed."""
        path = Path(sysconfig.get_path("platlib")) / LIBRARY
        return cls(library=ctypes.CDLL(str(path))) if path.is_file() else None

    def compile(self, source: str, name: str, target: str) -> str:
        """The compiler's and ptxas's words on ``source``, compiled to machine code for ``target``.

        Raises AssertionError with these words when it is refused.
        """
        program = c_void_p()
        self._call("nvrtcCreateProgram", byref(program), source.encode(), name.encode(), c_int(0), None, None)
        try:
            options = [f"--gpu-architecture={target}", "-std=c++17", "--ptxas-options=-v"]
            listed = (c_char_p * len(options))(*(option.encode() for option in options))
            status = self.library.nvrtcCompileProgram(program, c_int(len(options)), listed)
            size = c_size_t()
            self._call("nvrtcGetProgramLogSize", program, byref(size))
            log = create_string_buffer(size.value)
            self._call("nvrtcGetProgramLog", program, log)
            words = "\n".join(line for line in log.value.decode().splitlines() if DEPRECATED not in line)
            assert status == 0, words
            return words
        finally:
            self._call("nvrtcDestroyProgram", byref(program))

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self.library, function)(*arguments)
        assert status == 0, f"{function} returned {status}"
