"""Exported files on a GPU: built by load_inline, in a process that cannot import scanops, held to torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scanops.runtime.kernels import default_target
from tests.exports.files import PROBLEMS, parsed
from tests.scripts import ran

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# KernelBench's format takes masks of float32 as well, gpumode's a row of any length.
FORMATS = {"cumprod_any_dim": "kernelbench", "masked_cumsum": "kernelbench"}
FILES = {name: (slugs, FORMATS.get(name, "modelnew")) for name, slugs in PROBLEMS.items()}
FILES["gpumode"] = (("sum-f32-any-le1073741824",), "gpumode")


@pytest.mark.parametrize("name", FILES)
def test_an_exported_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "exported.py").write_text(parsed(*FILES[name], default_target()))
    words = (Path(__file__).with_name("exported.py"), tmp_path / "exported.py", name)
    ran(sys.executable, *words, folder=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "extensions"))
