"""``scanops doctor``: what is absent is no failure, what is broken is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scanops import environment
from scanops.artifact import ABI, platform
from scanops.builders import toolchain
from scanops.packs.manifest import finish
from scanops.store import layers
from scanops.store.packs import PACK
from scanops.store.signatures import sign
from tests.cli.conftest import PASSPHRASE, Call, parse_json
from tests.store.sources import needs_cxx, script

pytestmark = needs_cxx

Doctor = Callable[[], tuple[int, Any, dict[str, Any]]]
Gpu = Callable[[int, int], None]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with torch and nothing else. Returns a folder that is the whole PATH."""
    for row in environment.VARIABLES:
        monkeypatch.delenv(row.name, raising=False)
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "deep" / "store"))
    monkeypatch.setattr(toolchain, "_USUAL_ROOT", tmp_path / "absent")
    monkeypatch.setattr(toolchain, "_pathfinder_nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "_packaged_ninja", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return path


@pytest.fixture
def doctor(call: Call) -> Doctor:
    """``scanops doctor --json``: (exit code, answer, findings by name)."""

    def run() -> tuple[int, Any, dict[str, Any]]:
        layers._examined.cache_clear()
        result = call("doctor", "--json")
        answer = parse_json(result.stdout)
        checks = {check["name"]: check for check in answer["checks"]}
        assert result.exit_code == (0 if answer["ok"] else 1)
        assert all(check["next"] for check in checks.values() if check["status"] != "ok")
        return result.exit_code, answer, checks

    return run


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU of the compute capability that the test gives."""

    def install(*capability: int) -> None:
        facts = {"is_available": True, "device_count": 1, "get_device_name": "a GPU"}
        for name, value in {**facts, "get_device_capability": capability}.items():
            monkeypatch.setattr(torch.cuda, name, lambda value=value: value)

    return install


def test_this_machine(doctor: Doctor) -> None:
    _, answer, found = doctor()
    assert {"torch", "GPU", "driver", "nvcc", "g++", "ninja", "store"} <= set(found)
    assert answer["can"]["compose"] is True
    assert {row["name"] for row in answer["variables"]} == {row.name for row in environment.VARIABLES}


def test_compilers(call: Call, doctor: Doctor, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is no failure, and doctor creates nothing; what is broken is one."""
    code, answer, found = doctor()
    missing = {name for name, check in found.items() if check["status"] == "missing"} - {"driver"}
    assert (code, missing) == (0, {"GPU", "nvcc", "g++", "ninja", "native calls"})
    assert answer["can"] == {"run": False, "build": False, "emulate": False, "compose": True}
    assert not (tmp_path / "deep").exists()
    text = call("doctor")
    assert text.exit_code == 0 and answer["verdict"] == text.stdout.splitlines()[-1]
    assert all(check["next"] in text.stdout for check in found.values() if check["next"])
    script(bare / "g++", "echo g++ 12")
    assert doctor()[1]["can"] == {"run": False, "build": False, "emulate": True, "compose": True}
    script(bare / "nvcc", "echo cannot load >&2; exit 127")
    for _ in range(2):
        code, answer, found = doctor()
        assert (code, found["nvcc"]["status"], answer["can"]["build"]) == (1, "broken", False)
        monkeypatch.setenv("SCANOPS_NVCC", str(bare / "absent"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCANOPS_LOCK_SECONDS", "soon"),
        ("SCANOPS_MAX_STORE", "9" * 400),
        ("SCANOPS_POLICY", "soon"),
        ("SCANOPS_RECORD", "~no-such-user/specs.toml"),
        ("SCANOPS_REQUIRE_SIGNED", ""),
        ("SCANOPS_TUNING", "absent.json:plans.json"),  # a bad file fails each lookup of a kernel
        ("SCANOPS_STORE", "plans.json"),
        ("SCANOPS_STORE", "open"),  # others may write there
    ],
)
def test_an_invalid_setting(
    doctor: Doctor, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    (tmp_path / "plans.json").write_text("{", encoding="utf-8")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv(name, value)
    code, answer, found = doctor()
    name = "store" if name == "SCANOPS_STORE" else name
    assert (code, found[name]["status"], found[name].get("writable", False)) == (1, "broken", False)
    assert name in answer["verdict"]


def test_a_gpu_and_its_target(doctor: Doctor, bare: Path, gpu: Gpu) -> None:
    gpu(8, 7)
    found = doctor()[2]["GPU"]
    assert (found["status"], found["target"]) == ("ok", "sm_86")
    gpu(3, 5)
    assert doctor()[2]["GPU"]["status"] == "broken"


@pytest.fixture
def pack(folder: Path, bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of one kernel, which the environment names."""
    finish(folder)
    monkeypatch.setenv("SCANOPS_PACKS", str(folder))
    return folder


def test_a_pack_and_who_signed_it(
    doctor: Doctor, pack: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, answer, found = doctor()
    facts = {name: found["pack"][name] for name in ("status", "kernels", "targets", "signed")}
    assert facts == {"status": "ok", "kernels": 1, "targets": ["cpu"], "signed": False}
    assert (answer["ok"], answer["can"]["emulate"], answer["can"]["build"]) == (True, True, False)
    private, public = keys
    monkeypatch.setenv("SCANOPS_REQUIRE_SIGNED", str(public))
    assert doctor()[2]["pack"]["status"] == "broken"
    signer = sign(pack, private, lambda: PASSPHRASE)
    found = doctor()[2]
    assert (found["pack"]["status"], found["pack"]["signer"]) == ("ok", signer)
    assert found["SCANOPS_REQUIRE_SIGNED"]["keys"] == [signer]
    monkeypatch.setenv("SCANOPS_REQUIRE_SIGNED", str(private))
    assert "a private key" in doctor()[2]["SCANOPS_REQUIRE_SIGNED"]["summary"]


def test_packs_that_cannot_be_used(doctor: Doctor, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, entry = pack / PACK, next(pack.glob("sum-*"))
    text = file.read_text()
    changes: list[tuple[Callable[[], object], str, str]] = [
        (lambda: file.write_text(text.replace('"schema": 1', '"schema": 2')), "broken", "2"),
        (lambda: file.write_text(text.replace(f'"abi": {ABI}', '"abi": 1')), "broken", "ABI 1"),
        (lambda: file.write_text(text.replace(platform(), "linux-vax")), "broken", "linux-vax"),
        (lambda: file.unlink(), "missing", "no pack.json"),
        (lambda: file.write_text(text), "ok", "1 kernels for cpu"),
        (lambda: (entry / "kernel.so").chmod(0o666), "broken", "kernel.so: others may write"),
        (lambda: pack.chmod(0o777), "broken", "mode 0777"),
        (lambda: monkeypatch.setenv("SCANOPS_PACKS", str(pack / "typo")), "broken", "no such folder"),
    ]
    for change, status, words in changes:
        change()
        code, _, found = doctor()
        assert (found["pack"]["status"], words in found["pack"]["summary"]) == (status, True), found["pack"]
        assert code == int(status == "broken")


def test_a_pack_for_another_gpu_and_a_read_only_store(
    doctor: Doctor, bare: Path, pack: Path, monkeypatch: pytest.MonkeyPatch, gpu: Gpu
) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    code, _, found = doctor()
    assert (code, found["store"]["status"]) == (0, "missing")
    gpu(9, 0)
    _, answer, found = doctor()
    assert (found["pack"]["status"], answer["can"]["run"]) == ("missing", False)
    assert "--targets sm_90" in found["pack"]["next"]
    file = pack / PACK
    file.write_text(file.read_text().replace('"targets": [\n  "cpu"', '"targets": [\n  "sm_90"'))
    assert doctor()[1]["can"]["run"] is True
    monkeypatch.delenv("SCANOPS_PACKS")
    assert doctor()[2]["store"]["status"] == "broken"
