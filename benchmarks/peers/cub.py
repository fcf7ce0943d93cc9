"""CUB from the headers of the toolkit: BlockScan and WarpScan for rows, DeviceScan for one row or by key."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.cells import Case, Cell, Variant
from benchmarks.peers.base import Candidate, Peer
from scanops import environment
from scanops.builders.toolchain import find_cxx, find_nvcc
from scanops.errors import ScanopsError
from scanops.processes import at_once, jobs_that_fit

__all__ = ["Cub"]

SOURCE = Path(__file__).with_name("cub.cu")
# Methods as cub.cu numbers them.
BLOCK, VECTORS, LANES, DEVICE, BY_KEY = range(5)
_METHODS = ("BlockScan", "BlockScan, vectors", "WarpScan", "DeviceScan", "DeviceScan by key")
# (threads, items a thread) of the tiles in cub.cu; the last three for 4-byte sums only
_NARROW = ((64, 8), (128, 4), (128, 8), (256, 4), (256, 8), (512, 4), (512, 8), (1024, 4))
TILES = (*_NARROW, (256, 16), (512, 16), (1024, 8))
# (lanes a row, items a lane)
GROUPS = ((1, 4), (4, 4), (8, 4), (16, 4), (32, 4), (32, 8), (32, 16))
# dtype -> C type in memory, C type that is scanned, its bytes
_TYPES = {
    "float32": ("float", "float", 4),
    "bfloat16": ("__nv_bfloat16", "float", 4),
    "float16": ("__half", "float", 4),
    "float64": ("double", "double", 8),
    "int64": ("int64_t", "int64_t", 8),
    "int8": ("int8_t", "int64_t", 8),
    "bool": ("bool", "int64_t", 8),
}


class Cub(Peer):
    """CUB with every tile that fits a row; the fastest counts."""

    name = "CUB"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="scanops-cub-", ignore_cleanup_errors=True)
        self._built: dict[Variant, ctypes.CDLL | str] = {}  # a reason where there is none

    def prepare(self, cells: Sequence[Cell], target: str) -> None:
        variants = list(dict.fromkeys(cell.what for cell in cells if not self.reason(cell)))
        built = at_once(lambda row: self._build(row, target), variants, jobs_that_fit())
        self._built |= dict(zip(variants, built, strict=True))

    def reason(self, cell: Cell) -> str:
        if cell.inner > 1:
            return "CUB scans contiguous rows; it has nothing for a strided dimension"
        built = self._built.get(cell.what, "")
        return super().reason(cell) or (built if isinstance(built, str) else "")

    def candidates(self, case: Case) -> list[Candidate]:
        library = self._built[case.cell.what]
        assert not isinstance(library, str)
        return [
            Candidate(label, _Launch(library, case, *configuration))
            for label, *configuration in configurations(case.cell)
        ]

    def _build(self, what: Variant, target: str) -> ctypes.CDLL | str:
        path = Path(self._folder.name) / f"{len(self._built)}-{abs(hash(what)):x}.so"
        try:
            command, variables = build_command(what, target, path), environment.child(LC_ALL="C")
            done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        except (ScanopsError, OSError) as problem:
            return f"not built: {str(problem).splitlines()[0]}"
        if done.returncode:
            return f"not built: {done.stderr.strip()[-500:]}"
        library = ctypes.CDLL(str(path))
        library.cub_peer_scan.argtypes = _ARGUMENTS
        library.cub_peer_scan.restype = ctypes.c_int
        return library


_ARGUMENTS = (
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int),  # method, threads, items
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),  # input, mask, output
    *(ctypes.c_longlong, ctypes.c_longlong),  # rows, length
    *(ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p),  # workspace, its bytes, stream
)


def build_command(what: Variant, target: str, path: Path) -> list[str]:
    """Return the nvcc command that compiles cub.cu for a variant. Raises BuildFailure without nvcc."""
    toolkit = find_nvcc()
    memory, scanned, size = _TYPES[what.dtype]
    output = _TYPES[what.output.name][0]
    macros = {
        "INPUT": memory,
        "OUTPUT": output,
        "SUM": scanned,
        "SUM_BYTES": size,
        "PRODUCT": int(what.op == "prod"),
        "REVERSE": int(what.reverse),
        "EXCLUSIVE": int(what.exclusive),
        "MASKED": int(what.masked),
        "VECTORS": int(memory == scanned == output),
    }
    cccl = toolkit.root / "include" / "cccl"
    headers = [f"-I{cccl}"] if cccl.is_dir() else []
    return [
        *(str(toolkit.path), "-ccbin", str(find_cxx().path), "-O3", "-std=c++17", f"-arch={target}"),
        *("-shared", "-Xcompiler", "-fPIC", *headers),
        *(f"-D{name}={value}" for name, value in macros.items()),
        *("-o", str(path), str(SOURCE)),
    ]


def configurations(cell: Cell) -> list[tuple[str, int, int, int]]:
    """Return the (label, method, threads or lanes, items) to try on the rows of a cell."""
    what, rows, length = cell.what, cell.outer, cell.length
    plain = what.plain and what.op == "sum"
    memory, scanned, size = _TYPES[what.dtype]
    found: list[tuple[int, int, int]] = []
    for place, (threads, items) in enumerate(TILES):
        tile = threads * items
        if (size == 8 and place >= len(_NARROW)) or (tile >= 4 * length and place > 0) or rows > 2**31 - 1:
            continue
        found.append((BLOCK, threads, items))
        if plain and memory == scanned == _TYPES[what.output.name][0] and length % tile == 0:
            found.append((VECTORS, threads, items))
    if plain:
        fitting = [(lanes, items) for lanes, items in GROUPS if length <= lanes * items]
        found += [(LANES, lanes, items) for lanes, items in fitting[:2]]
        found.append((DEVICE, 0, 0) if rows == 1 else (BY_KEY, 0, 0))
        if rows * length > 2**32 - 1:
            found = [row for row in found if row[0] != BY_KEY]  # its keys are made from 32-bit indices
    return [
        (_METHODS[method] + (f" {threads} x {items}" if threads else ""), method, threads, items)
        for method, threads, items in found
    ]


class _Launch:
    """One launch on given tensors; the first call allocates the workspace."""

    def __init__(self, library: ctypes.CDLL, case: Case, method: int, threads: int, items: int) -> None:
        self._scan = library.cub_peer_scan
        self._case, self._how = case, (method, threads, items)
        self._workspace: torch.Tensor | None = None
        self._bytes = ctypes.c_size_t(0)
        if method in (DEVICE, BY_KEY):
            self._call(None)
            self._workspace = torch.empty(max(1, self._bytes.value), dtype=torch.uint8, device=case.x.device)

    def __call__(self) -> torch.Tensor:
        self._call(None if self._workspace is None else self._workspace.data_ptr())
        return self._case.y

    def _call(self, workspace: int | None) -> None:
        case = self._case
        code = self._scan(
            *self._how,
            case.x.data_ptr(),
            None if case.mask is None else case.mask.data_ptr(),
            case.y.data_ptr(),
            case.cell.outer,
            case.cell.length,
            workspace,
            ctypes.byref(self._bytes),
            torch.cuda.current_stream().cuda_stream,
        )
        if code:
            raise RuntimeError(f"CUB {self._how}: {'no such kernel' if code < 0 else f'CUDA error {code}'}")
