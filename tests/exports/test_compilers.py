"""The CUDA of exported files is accepted by nvcc, host and device."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scanops.builders.toolchain import find_nvcc
from tests.exports.files import parsed, texts
from tests.store.sources import needs_nvcc
from tests.templates.test_compilers import STRICT, together

# Launchers with every argument that there is, and the formats.
FILES = (
    ("sum-f32-n32768-mask_b8", "cu"),
    ("linear-bf16-n300-inner64-gate_f32-offsets_i32-initial-final-reverse-strided-strided_gate", "cu"),
    ("cummax-f32-n4096-transposed", "cu"),
    ("sum-f32-any-le1073741824-few", "gpumode"),
    ("sum-f64-n32768-inner1000-mask_f32-reverse-exclusive-initial", "cu"),
)


@needs_nvcc
def test_nvcc(tmp_path: Path) -> None:
    files = [(parsed([slug], format), format) for slug, format in FILES]
    cuda = [text for file, format in files for text in ([file] if format == "cu" else texts(file).values())]
    source = tmp_path / "exports.cu"
    source.write_text(together(cuda))
    command = [str(find_nvcc().nvcc), "-c", *STRICT, "-gencode=arch=compute_90,code=sm_90", str(source)]
    done = subprocess.run([*command, "-o", str(tmp_path / "exports.o")], capture_output=True, text=True, check=False)
    log = done.stdout + done.stderr
    assert (done.returncode, "warning" in log.lower()) == (0, False), log


@needs_nvcc
def test_the_command_in_a_cu_file(tmp_path: Path) -> None:
    """The first line of the header is what a shell takes."""
    text = parsed(["sum-f32-n4"], "cu")
    (tmp_path / "scan.cu").write_text(text)
    line = next(line for line in text.splitlines() if "nvcc" in line).removeprefix("//").replace("THIS_FILE", "scan.cu")
    done = subprocess.run(line.replace("nvcc", str(find_nvcc().nvcc), 1), shell=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert b"scan_launch" in (tmp_path / "scan.so").read_bytes()
