"""``scanops build``, for the emulator: g++ is what every machine that tests has."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.builders.toolchain import CudaToolkit, require_target
from scanops.errors import UnsupportedRequest
from tests.cli.conftest import Ask, Call
from tests.store.sources import needs_nvcc

SLUG = "sum-f32-n5"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    monkeypatch.setenv("SCANOPS_STORE", str(root))
    return root


def test_built_then_found(call: Call, ask: Ask, store: Path) -> None:
    (built,), (found,) = (ask("build", SLUG, "--target", "cpu")["kernels"] for _ in range(2))
    assert (built["slug"], built["target"], built["found"], found["found"]) == (SLUG, "cpu", False, True)
    assert found["path"] == built["path"] and Path(built["path"]).is_relative_to(store)
    assert Path(built["source"]).read_text(encoding="utf-8").startswith("// scanops")
    text = call("build", SLUG, "--target", "cpu")
    assert text.exit_code == 0 and built["path"] in text.stdout
    assert text.stdout.splitlines()[0].split()[:3] == [SLUG, "cpu", "found"]


@needs_nvcc
def test_registers_are_the_compilers(ask: Ask) -> None:
    (kernel,) = ask("build", SLUG, "--target", "sm_80")["kernels"]
    assert kernel["resources"]["registers"] > 0 and kernel["resources"]["spill_store_bytes"] == 0
    answer = ask("plan", SLUG, "--target", "sm_80", "--build")
    assert (answer["registers_from"], answer["registers"]) == ("compiler", kernel["resources"]["registers"])
    assert answer["resources"] == kernel["resources"] and answer["shared_bytes"]["declared"] >= 0


def test_an_architecture_that_nvcc_dropped() -> None:
    """Only targets that scanops and this nvcc both know are suggested."""
    toolkit = CudaToolkit(
        nvcc=Path("/cuda/bin/nvcc"), found_by="PATH", root=Path("/cuda"), version="13.0", include=None,
        runtime=None, targets=("sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_90", "sm_110"),
    )  # fmt: skip
    with pytest.raises(UnsupportedRequest) as caught:
        require_target(toolkit, "sm_70")
    assert "sm_75, sm_80, sm_86, sm_90;" in caught.value.allowed
    assert caught.value.hint.startswith("use sm_75, or set SCANOPS_NVCC")


def test_several_are_named_in_order_and_once(ask: Ask) -> None:
    slugs = [SLUG, "prod-f32-n6"]
    kernels = ask("build", *slugs, SLUG, "--target", "cpu")["kernels"]
    assert [(kernel["slug"], kernel["ok"]) for kernel in kernels] == [(slug, True) for slug in slugs]
