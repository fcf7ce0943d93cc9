"""What a cubin states: an ELF file of GPU code, with its target, its kernel and the kernel's parameters.

Two layouts are in use: that of CUDA 12 for targets up to sm_90, and that of CUDA 13 and of later targets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

KERNEL = "scan_kernel"  # the name of the kernel in every cubin
_HEADER_BYTES = 64
_ELF = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
_CUDA = 190  # e_machine
_VERSION, _MACHINE, _SECTIONS, _FLAGS, _COUNTS = 8, 18, 40, 48, 58  # offsets in the header
_TARGET_BITS = {7: 0, 8: 8}  # EI_ABIVERSION -> the bit of e_flags where the number of the target begins
_INFO = ".nv.info."  # the section with attributes of the kernel whose name follows
_OF_BYTES, _PARAMETER = 4, 0x17  # the format of an attribute with bytes of its own; the attribute of a parameter
_SIZE_BIT = 18  # of a parameter's last word, where its size in bytes begins
_STRUCTS = ("geometry", "neighbours", "offsets")  # the parameters that are larger than a word
_WORD_BYTES = 8


def problem(header: bytes, target: str) -> str | None:
    """Return why a file that begins with ``header`` is no cubin for ``target``, such as "sm_90"; None when it is."""
    if header[: len(_ELF)] != _ELF or len(header) < _HEADER_BYTES:
        return "kernel.cubin: no ELF file of 64 bits"
    (machine,), (flags,) = struct.unpack_from("<H", header, _MACHINE), struct.unpack_from("<I", header, _FLAGS)
    if machine != _CUDA:
        return f"kernel.cubin: built for ELF machine {machine}, not for a GPU"
    if header[_VERSION] not in _TARGET_BITS:
        return f"kernel.cubin: ELF ABI version {header[_VERSION]}, which this scanops does not know"
    built = f"sm_{flags >> _TARGET_BITS[header[_VERSION]] & 0xFF}"
    return None if built == target.rstrip("af") else f"kernel.cubin: built for {built}, not for {target}"


def disagreement(cubin: bytes, parameters: Sequence[str]) -> str | None:
    """Return how the kernel of a cubin differs from one with these parameters, as ``Launch`` names them; else None."""
    try:
        kernels = {name: body for name, body in _sections(cubin) if name.startswith(_INFO)}
        if list(kernels) != [_INFO + KERNEL]:
            return f"the kernels {', '.join(name.removeprefix(_INFO) for name in kernels) or 'none'}, not {KERNEL}"
        sizes = dict(_parameters(kernels[_INFO + KERNEL]))
    except (struct.error, ValueError) as wrong:
        return f"no cubin: {wrong}"
    found = [size for _, size in sorted(sizes.items())]
    if [size > _WORD_BYTES for size in found] == [name in _STRUCTS for name in parameters]:
        return None
    return f"parameters of {found} bytes for {', '.join(parameters)}"


def _parameters(info: bytes) -> Iterator[tuple[int, int]]:
    """Yield (number, size in bytes) of each parameter that a section of attributes describes."""
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if (form, attribute) == (_OF_BYTES, _PARAMETER):
            _, number, _, words = struct.unpack_from("<IHHI", info, at)
            yield number, words >> _SIZE_BIT
        at += size if form == _OF_BYTES else 0


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (name, contents) of the sections of an ELF file. Raises ValueError and struct.error for no such file."""
    (start,) = struct.unpack_from("<Q", cubin, _SECTIONS)
    size, count, names = struct.unpack_from("<3H", cubin, _COUNTS)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + size * number) for number in range(count)]
    (names_at,) = (header[4] for header in headers[names : names + 1])
    for name, _, _, _, begin, length in headers:
        text = cubin[names_at + name : cubin.index(b"\0", names_at + name)]
        yield text.decode(), cubin[begin : begin + length]
