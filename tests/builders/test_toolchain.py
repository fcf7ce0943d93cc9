from __future__ import annotations

import os
from pathlib import Path

import pytest

from scanops.builders import toolchain
from scanops.errors import BuildFailure, UnsupportedRequest
from tests.store.sources import script

FAKE_NVCC = """
case "$*" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
  --list-gpu-code) printf 'sm_80\\nsm_120\\nsm_87\\nsm_90\\n' ;;
  *) echo '#$ TOP={root}/bin/..' >&2
     echo '#$ INCLUDES="-I{root}/bin/../include"  ' >&2
     echo '#$ LIBRARIES=  "-L{root}/bin/../lib64/stubs" "-L{root}/bin/../lib64"' >&2 ;;
esac
"""


def pip_toolkit(root: Path, version: str = "13.0") -> Path:
    """A toolkit as pip lays it out, no lib64 and no libcudart.so: its nvcc."""
    for name in ("bin", "include", "lib"):
        (root / name).mkdir(parents=True)
    (root / "include" / "cuda_runtime.h").touch()
    (root / "lib" / "libcudart.so.13").touch()
    return script(root / "bin" / "nvcc", FAKE_NVCC.replace("{root}", str(root)).replace("{version}", version))


def test_the_order_of_the_search_and_the_pip_layout(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ("usual", "on-path", "pathfinder", "cuda-path", "cuda-home", "chosen")
    nvcc = {place: pip_toolkit(bare / place) for place in places}
    assert toolchain.find_nvcc().path == nvcc["usual"]
    monkeypatch.setenv("PATH", f"{nvcc['on-path'].parent}{os.pathsep}{bare / 'programs'}")
    assert toolchain.find_nvcc().path == nvcc["on-path"]
    monkeypatch.setattr(toolchain, "_pathfinder_nvcc", lambda: nvcc["pathfinder"])
    found, root = toolchain.find_nvcc(), bare / "pathfinder"
    assert (found.path, found.found_by, found.root, found.version) == (nvcc[root.name], "cuda-pathfinder", root, "13.0")
    assert found.targets == ("sm_80", "sm_87", "sm_90", "sm_120")
    assert (found.include, found.runtime) == (root / "include", root / "lib" / "libcudart.so.13")
    monkeypatch.setenv("CUDA_PATH", str(bare / "cuda-path"))
    assert toolchain.find_nvcc().found_by == "CUDA_PATH"
    monkeypatch.setenv("CUDA_HOME", str(bare / "cuda-home"))
    assert toolchain.find_nvcc().found_by == "CUDA_HOME"
    monkeypatch.setenv("SCANOPS_NVCC", str(nvcc["chosen"]))
    assert toolchain.find_nvcc().root == bare / "chosen"


def test_a_wrapper_script_leads_to_the_root_of_the_real_one(bare: Path) -> None:
    """Find the root through a script, and ask an nvcc again that is replaced under its name."""
    real = pip_toolkit(bare / "real")
    wrapper = script(bare / "programs" / "nvcc", f'exec "{real}" "$@"')
    found = toolchain.find_nvcc()
    assert (found.path, found.root, found.version) == (wrapper, bare / "real", "13.0")
    wrapper.write_text(real.read_text().replace("13.0", "13.10"))
    assert toolchain.find_nvcc().version == "13.10"


# What is missing -> how it is looked for, and what the error names
MISSING = {
    "nvcc": (toolchain.find_nvcc, r"none in .*PATH", "cuda-toolkit[nvcc"),
    "g++": (toolchain.find_cxx, r"'g\+\+': not found", "g++"),
    "ninja": (toolchain.find_ninja, "neither", "pip install ninja"),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_program_that_is_missing(bare: Path, what: str) -> None:
    find, value, hint = MISSING[what]
    with pytest.raises(BuildFailure, match=value) as caught:
        find()
    assert hint in caught.value.hint


def test_an_nvcc_that_does_not_answer_or_is_not_there(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_toolkit(bare / "usual")
    script(bare / "programs" / "nvcc", "echo broken >&2; exit 1")
    with pytest.raises(BuildFailure, match="broken"):
        toolchain.find_nvcc()
    monkeypatch.setenv("SCANOPS_NVCC", str(bare / "nowhere"))  # not silently another one
    with pytest.raises(BuildFailure, match="correct SCANOPS_NVCC"):
        toolchain.find_nvcc()


def test_compilers_serve_known_targets_from_safe_folders(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_toolkit(bare / "usual")
    monkeypatch.setenv("SCANOPS_CXX", str(script(bare / "g++", "echo g++ 13.0")))
    monkeypatch.chdir(bare)
    for known in ("sm_90", "sm_90a", "sm_120f"):
        assert toolchain.cuda_compilers(known)[0].version == "13.0"
    for unknown, nearest in (("sm_70", "sm_80"), ("sm_9", "sm_90"), ("cpu", "sm_")):
        with pytest.raises(UnsupportedRequest, match="sm_80, sm_90, sm_120") as caught:  # which scanops knows, too
            toolchain.cuda_compilers(unknown)
        assert caught.value.hint.startswith(f"use {nearest}") and "or set SCANOPS_NVCC" in caught.value.hint
    monkeypatch.setenv("SCANOPS_NVCC", str(pip_toolkit(bare / "$(touch PWNED)")))
    with pytest.raises(BuildFailure, match=r"run nvcc with .*touch PWNED"):
        toolchain.cuda_compilers("sm_90")
    assert not (bare / "PWNED").exists()
