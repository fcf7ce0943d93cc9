"""Offsets that were overwritten after they were checked: no kernel accesses memory outside of its tensors.

``python -m tests.emulator.test_overwritten_offsets`` calls every kernel that reads offsets with wild values, in a
process that runs under AddressSanitizer with kernels that were compiled for it. With the word ``control`` the tensors
for carries are too small, which has to be reported.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops.requests import segments
from scanops.runtime import call_cache

LOW, HIGH = -(2**31), 2**31 - 1
WILD = {
    "negative": [0, -5, 20, 64],
    "far beyond": [0, 20, 10**6, 64],
    "far beyond, twice": [0, 2**30, 2**30, 64],
    "lowest": [0, LOW, 30, 64],
    "falling": [0, 40, 10, 64],
    "all beyond": [0, 65, 66, 64],
    "last beyond": [0, 20, 40, 100],
    "last far beyond": [0, 20, 40, 2**30],
    "last negative": [0, 20, 40, -1],
    "first positive": [5, 20, 40, 64],
    "first negative": [-(10**6), 20, 40, 64],
    "all negative": [-9, -8, -7, -6],
    "all zero": [0, 0, 0, 0],
    "highest": [HIGH, HIGH, HIGH, HIGH],
    "highest and lowest": [HIGH, LOW, HIGH, LOW],
}


SHAPES = {  # short and long rows, few columns, columns; the dtype of offsets changes nothing but a type of the text
    torch.int32: ((2, 64), (1, 9000), (2, 64, 3), (2, 64, 40)),
    torch.int64: ((2, 64),),
}


DOORS: tuple[dict[str, Any], ...] = ({}, {"return_final": "segments"}, {"chunk": 5})


def call_every_kernel(offsets: torch.Tensor) -> None:
    """Scan with flags, carries, chunks and gradients, in either direction by turns."""
    for number, shape in enumerate(SHAPES[offsets.dtype]):
        x = torch.ones(shape)
        start = torch.ones(shape[0], len(offsets) - 1, *shape[2:])
        for turn, options in enumerate(DOORS):
            scanops.cumsum(x, 1, offsets=offsets, reverse=(number + turn) % 2 == 1, **options)
        scanops.cumsum(x, 1, offsets=offsets, initial=start)
        scanops.cumsum(x, 1, offsets=offsets, initial=start, return_final=True, exclusive=True)
        scanops.cumsum(x, 1, offsets=offsets, chunk=shape[1] // 2)
    x = torch.ones(2, 64, 50)[..., 3:43]  # off the boundary of an access
    scanops.cumsum(x, 1, offsets=offsets, chunk=16)
    scanops.linear_scan(x, x, 1, offsets=offsets)
    scanops.cummax(x, 1, offsets=offsets)
    leaf = torch.ones(2, 64, requires_grad=True)
    scanops.cumprod(leaf, 1, offsets=offsets, return_final="segments")[1].sum().backward()


def main(control: bool) -> None:
    segments._has_values = lambda offsets: False  # as if the values had been checked before they were overwritten
    if control:
        places = call_cache.places_for
        call_cache.places_for = lambda request: (*places(request)[:-1], places(request)[-1].new_empty(1))
    with scanops.emulate():
        for dtype in (torch.int32, torch.int64):
            for name, values in WILD.items():
                print(dtype, name, flush=True)
                call_every_kernel(torch.tensor(values, dtype=dtype))


def sanitized(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this module under AddressSanitizer. Stacks are left out: threads of a kernel have stacks of their own.

    Its kernels have the identities of plain ones, and so a store of their own, which lies in that of the tests and is
    kept as long.
    """
    store = Path(os.environ["SCANOPS_STORE"], ".sanitized")
    compiler = shutil.which(os.environ.get("SCANOPS_CXX", "g++"))
    library = subprocess.run(
        [str(compiler), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer")
    wrapper = folder / "cxx"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" -fsanitize=address --param asan-stack=0 -Wl,-z,undefs\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "SCANOPS_CXX": str(wrapper),
        "SCANOPS_STORE": str(store),
    }
    command = [sys.executable, "-m", "tests.emulator.test_overwritten_offsets", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_wild_values_stay_within_the_tensors(tmp_path: Path) -> None:
    done = sanitized(tmp_path)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == 2 * len(WILD)


@pytest.mark.slow
def test_an_access_outside_of_a_tensor_is_reported(tmp_path: Path) -> None:
    done = sanitized(tmp_path, "control")
    assert done.returncode != 0 and "AddressSanitizer: heap-buffer-overflow" in done.stderr


if __name__ == "__main__":
    main("control" in sys.argv)
