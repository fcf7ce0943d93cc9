"""The commands of docs/deployment.md do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.scripts import ran
from tests.store.sources import script

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
RUN = """
import torch, scanops
kernel = scanops.compile(scanops.ScanSpec.parse("sum-f32-n32768"), "cpu")
x = torch.randint(-8, 8, (8, 32768)).float()
with scanops.emulate():
    assert kernel(x).equal(x.cumsum(1)), "another result"
print(kernel.path)
"""


def shell(text: str, folder: Path, **changes: str) -> str:
    """Run the page's commands for the emulator, in a folder of the test, and return what they print."""
    text = re.sub(r"(--target sm_\d+ ?)+", "--target cpu ", text).replace("/opt/kernels", f"{folder}/opt/kernels")
    return ran("/bin/sh", "-euc", f"umask 022\n{text}", folder=folder, PYTHONPATH=str(ROOT), **changes).stdout


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_from_a_laptop_to_a_container(tmp_path: Path) -> None:
    laptop, container = BLOCKS[0].split("# in the container")
    assert len([line for line in BLOCKS[0].splitlines() if not line.startswith("#")]) <= 10
    (tmp_path / "laptop").mkdir()
    script(tmp_path / "laptop" / "scanops", f'exec {sys.executable} -m scanops "$@"')
    shell(laptop, tmp_path, PATH=f"{tmp_path / 'laptop'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "kernels").rename(tmp_path / "left-behind")
    # No compiler, no ninja, no store and a HOME that cannot be made.
    (tmp_path / "file").touch()
    bare = {"HOME": f"{tmp_path}/file/home", "SCANOPS_STORE": f"{tmp_path}/absent", "PATH": str(tmp_path / "laptop")}
    run = script(tmp_path / "laptop" / "run", f'exec {sys.executable} -c "$1"')
    said = shell(f"#{container}\n{run.name} '{RUN}'", tmp_path, **bare)
    assert "signed by" in said and "found by its index" in said
    assert Path(said.splitlines()[-1]).is_relative_to(tmp_path / "opt" / "kernels")
    (checks,) = (block for block in BLOCKS if "pkeyutl" in block)
    assert "Success" in shell(checks, tmp_path)
