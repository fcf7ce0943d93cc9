"""``scanops build``, for the emulator: g++ is what every machine that tests has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from scanops.builders.toolchain import CudaToolkit, find_nvcc, require_target
from scanops.cli import build
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.precompile import Built

Call = Callable[..., Result]
SLUG = "sum-f32-n5"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    monkeypatch.setenv("SCANOPS_STORE", str(root))
    return root


def test_built_then_found(call: Call, parsed: Callable[[str], Any], store: Path) -> None:
    first, second = (parsed(call("build", SLUG, "--target", "cpu", "--json").stdout) for _ in range(2))
    assert (first["ok"], second["ok"]) == (True, True)
    (built,), (found,) = first["kernels"], second["kernels"]
    assert (built["slug"], built["target"], built["found"]) == (SLUG, "cpu", False)
    assert found["found"] is True
    assert found["path"] == built["path"]
    assert Path(built["path"]).is_relative_to(store)
    assert Path(built["source"]).read_text(encoding="utf-8").startswith("// scanops")
    table = call("build", SLUG, "--target", "cpu")
    assert table.exit_code == 0
    assert table.stdout.splitlines()[0].split()[:3] == [SLUG, "cpu", "found"]
    assert built["path"] in table.stdout


def test_registers(call: Call, parsed: Callable[[str], Any]) -> None:
    try:
        find_nvcc()
    except BuildFailure:
        pytest.skip("no nvcc")
    (kernel,) = parsed(call("build", SLUG, "--target", "sm_80", "--json").stdout)["kernels"]
    assert kernel["resources"]["registers"] > 0
    assert kernel["resources"]["spill_store_bytes"] == 0


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


def test_no_compiler(call: Call, parsed: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    result = call("build", SLUG, "sum-f32-n6", "--target", "cpu", "--json")
    assert result.exit_code == 1
    answer = parsed(result.stdout)
    assert (answer["ok"], answer["error"]["kind"]) == (False, "MissingCompiler")
    assert [kernel["ok"] for kernel in answer["kernels"]] == [False, False]  # one failure does not stop the others
    text = call("build", SLUG, "--target", "cpu")
    assert text.exit_code == 1
    assert "failed" in text.stdout
    assert "next:" in text.stderr


def test_what_is_wrong_shows_before_anything_is_built(call: Call, store: Path) -> None:
    for words in ((SLUG, "sum-f32"), (SLUG, "--target", "cpu", "--target", "sm_1")):
        assert call("build", *words).exit_code == 2
        assert not store.exists()


def test_a_store_that_cannot_be_used(call: Call, store: Path) -> None:
    store.write_text("not a folder", encoding="utf-8")
    result = call("build", SLUG, "--target", "cpu")
    assert result.exit_code == 1
    assert "BadStoreEntry" in result.stderr


def test_several_are_built_at_once_and_named_in_order(
    call: Call, parsed: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A barrier that each build waits at breaks where they come one after another."""
    slugs = ["sum-f32-n5", "prod-f32-n6", "sum-f32-n4"]
    gate = threading.Barrier(len(slugs))
    true = build.built

    def together(*request: Any) -> Built:
        gate.wait(60)
        return true(*request)

    monkeypatch.setattr(build, "built", together)
    monkeypatch.setattr(build, "jobs_that_fit", lambda: len(slugs))
    result = call("build", *slugs, slugs[0], "--target", "cpu", "--json")
    assert [(kernel["slug"], kernel["ok"]) for kernel in parsed(result.stdout)["kernels"]] == [
        (slug, True) for slug in slugs
    ]
