"""What is recorded, and spec files: what they stand for, and what is said of those that make no sense."""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scanops
from scanops import ScanSpec
from scanops.codegen.kernel_key import FEW, KernelKey
from scanops.errors import BadSpecFile, UnsupportedRequest, UnusableFile
from scanops.files import replaced, write_text
from scanops.precompile import expand_file
from scanops.specfile import MAX_BYTES, add, check_writable, load
from tests.policy.conftest import SPEC, X

PROD = ScanSpec(op="prod", dtype="float32", length=60)


def written(folder: Path, text: str) -> Path:
    path = folder / "specs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_block(tmp_path: Path) -> None:
    with scanops.emulate():
        scanops.cumsum(X, 1)
        with scanops.record() as used:
            for _ in range(3):
                scanops.cumsum(X, 1)
            scanops.cumprod(X[:, :60].contiguous(), 1)
        scanops.cumsum(X, 1)
    assert used.counts == {KernelKey(SPEC, "cpu"): 3, KernelKey(PROD, "cpu"): 1}
    assert (list(used), len(used)) == ([SPEC, PROD], 2)
    for _ in range(2):
        used.write(tmp_path / "specs.toml")
    assert load(tmp_path / "specs.toml").wanted == {(SPEC, "cpu"): 6, (PROD, "cpu"): 2}


def test_few_lines_have_a_kernel_of_their_own(tmp_path: Path) -> None:
    """A spec of a file stands for both kernels, as which one runs depends on the GPU."""
    file, spec = tmp_path / "specs.toml", ScanSpec(op="sum", dtype="float32", length=8192)
    with scanops.emulate(), scanops.policy("fallback"), scanops.record() as used, pytest.warns(RuntimeWarning):
        scanops.cumsum(torch.ones(2, 8192), 1)
        used.write(file)
    assert used.counts == {KernelKey(spec, "cpu", FEW): 1} and load(file).wanted == {(spec, "cpu"): 1}
    file.write_text('specs = ["sum-f32-n8192", "sum-f32-n4096"]\n', encoding="utf-8")
    both = [KernelKey(spec, "sm_90"), KernelKey(spec, "sm_90", FEW), KernelKey(replace(spec, length=4096), "sm_90")]
    assert expand_file(load(file).wanted, ["sm_90"], file) == both


def test_every_miss_is_recorded_whatever_serves_it() -> None:
    """Empty tensors ask for no kernel, and CPU tensors outside of emulation for none that a GPU would."""
    with scanops.record() as used, scanops.emulate(), scanops.policy("fallback"), pytest.warns(RuntimeWarning):
        scanops.cumsum(X[:0], 1)
        assert not used.counts
        scanops.cumsum(X, 1)
    assert list(used) == [SPEC]
    with (
        pytest.warns(RuntimeWarning, match="nothing is recorded: all scans were of CPU tensors"),
        scanops.record() as used,
    ):
        scanops.cumsum(X, 1)
        scanops.cumprod(X, 1)
    assert not used.counts


PROGRAM = """
import os, signal, torch, scanops
with scanops.emulate(), scanops.policy("fallback"):
    for _ in range({times}):
        scanops.cumsum(torch.ones(3, 100), 1)
{end}
"""


def test_processes_share_a_file(tmp_path: Path) -> None:
    """A process that is killed has recorded its specs."""
    file = tmp_path / "new" / "specs.toml"
    programs = ((3, "os.kill(os.getpid(), signal.SIGKILL)"), (2, ""))
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM.format(times=times, end=end)],
            env={**os.environ, "SCANOPS_RECORD": str(file)},
        )
        for times, end in programs
    ]
    assert [process.wait(timeout=120) for process in running] == [-9, 0]
    assert load(file).wanted == {(SPEC, "cpu"): 1 + 2}
    assert not [path for path in file.parent.iterdir() if path.name not in (file.name, f".{file.name}.lock")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_file_that_cannot_be_used_stops_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, "no TOML")
    monkeypatch.setenv("SCANOPS_RECORD", str(file))
    with caplog.at_level(logging.ERROR, "scanops"), scanops.emulate(), scanops.policy("fallback"):
        for scan in (scanops.cumsum, scanops.cumsum, scanops.cumprod):
            scan(X, 1)
    assert len(caplog.records) == 1 and str(file) in caplog.text
    assert file.read_text(encoding="utf-8") == "no TOML"


def test_counts_are_added_to_a_file_written_by_hand(tmp_path: Path) -> None:
    file = written(tmp_path, 'targets = ["sm_80", "sm_90"]\nspecs = ["prod-f32-n60"]\n')
    add(file, {KernelKey(SPEC, "cpu"): 2, KernelKey(SPEC, "cpu", FEW): 3})
    assert load(file).wanted == {(PROD, "sm_80"): 0, (PROD, "sm_90"): 0, (SPEC, "cpu"): 5}


# ---- what a spec file stands for


def test_targets_of_the_file_of_a_table_and_of_the_command(tmp_path: Path) -> None:
    path = written(tmp_path, 'targets = ["sm_80", "sm_90"]\n[[scan]]\nspec = "sum-f32-n9"\ntarget = "cpu"\n')
    one = ScanSpec(op="sum", dtype="float32", length=9)
    assert expand_file(load(path).wanted, [], path) == [KernelKey(one, "cpu")]
    assert expand_file(load(path).wanted, ["sm_100", "sm_90"], path) == [
        KernelKey(one, "sm_100"),
        KernelKey(one, "sm_90"),
    ]
    path = written(tmp_path, 'specs = ["sum-f32-n9"]\n')
    with pytest.raises(UnsupportedRequest, match="--targets"):
        expand_file(load(path).wanted, [], path)


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("specs = [}", "the text", "line 1"),
        ("lengths = [3]", "the top level", "lengths"),
        ('specs = "sum-f32-n9"', "specs", "sum-f32-n9"),
        ('specs = ["sum-f32-m9"]', "specs", "sum-f32-m9"),
        ("targets = [90]", "targets", "90"),
        ('[scan]\nspec = "sum-f32-n9"', "scan", "sum-f32-n9"),
        ('[[scan]]\nspec = "sum-f32-n9"\n[[scan]]\nspec = "sum"', "number 2", "sum"),
        ('[[scan]]\nspec = "sum-f32-n9"\nlength = 3', "number 1", "length"),
        ('[[scan]]\nspec = "sum-f32-n9"\ncount = -1', "number 1", "-1"),
        ('[[scan]]\nspec = "sum-f32-n9"\ntarget = 90', "number 1", "90"),
        ("[[scan]]\nspec = 3", "number 1", "3"),
        ("[[scan]]\ncount = 3", "number 1", "no spec"),
    ],
)
def test_what_makes_no_sense(text: str, place: str, value: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadSpecFile) as caught:
        load(path)
    assert str(path) in caught.value.asked and place in caught.value.asked
    assert value in str(caught.value.value)


@pytest.mark.parametrize(
    "text",
    [
        "[[scan]]\nspec = 'sum-f32-n9'\ncount = " + "9" * 5000,
        "specs = ['sum-f32-n" + "9" * 5000 + "']",
        "specs = [" + "9" * 5000 + "]",
        "a" + ".a" * 50_000 + " = 1",  # which tomllib takes minutes for
        "[[scan]]\nspec = {" + "a." * 50_000 + "a = 1}",
        "[" + "a." * 50_000 + "a]",
        "'a'" + ' . "a"' * 20_000 + " = 1",
        "x = ['''\n''', {" + "a." * 50_000 + "a = 1}]",
        '"' + '\\"' * 100_000,
        "x = " + "[" * 100_000,
        "x = " + "{x=" * 100_000,
        "specs = ['" + "x" * (MAX_BYTES + 1) + "']",
        "\x00",
    ],
    ids=lambda text: f"{text[:30]!r}",
)
def test_a_file_of_any_text_is_refused_in_time(text: str, tmp_path: Path) -> None:
    path, begun = written(tmp_path, text), time.monotonic()
    with pytest.raises(BadSpecFile) as caught:
        load(path)
    assert time.monotonic() - begun < 5 and len(str(caught.value)) < 3000


NAMES = ("it's", 'a "b"', "a\nb", "\x1b[2J", "\x7f", "back\\slash", "ä\U0001f600", "a\tb", "#", "")


@pytest.mark.parametrize("name", NAMES)
def test_names_from_a_file_are_written_so_that_it_can_be_read(name: str, tmp_path: Path) -> None:
    """Names of targets are not checked when a file is read: recording into it breaks none of them."""
    text = "".join(f"\\U{ord(char):08X}" for char in name)
    path = written(tmp_path, f'[[scan]]\nspec = "{SPEC.slug}"\ntarget = "{text}"\n')
    for count in (0, 1):
        assert load(path).wanted == {(SPEC, name): 0, **({(PROD, "cpu"): count} if count else {})}
        add(path, {KernelKey(PROD, "cpu"): 1})


def test_counts_end_at_the_greatest_number_of_toml(tmp_path: Path) -> None:
    path = written(tmp_path, f'[[scan]]\nspec = "prod-f32-n60"\ntarget = "cpu"\ncount = {2**63 - 1}\n')
    for _ in range(2):
        add(path, {KernelKey(PROD, "cpu"): 1})
        assert load(path).wanted == {(PROD, "cpu"): 2**63 - 1}


PIECES = ("[[scan]]\n", "[scan]\n", "specs = [", *"]\"'\\\n=.#{}é\x00", "9" * 30, "-1", "nan")


def test_changed_files_are_read_or_refused(tmp_path: Path) -> None:
    """A mutation each, drawn from a seed: what can be read can be added to, and is read again."""
    pick, outcomes = random.Random(5), Counter[bool]()
    add(tmp_path / "good.toml", {KernelKey(PROD, "cpu"): 3, KernelKey(SPEC, "sm_90", FEW): 2})
    good = (tmp_path / "good.toml").read_text()
    for _ in range(1500):
        begin, piece = pick.randrange(len(good)), pick.choice((*PIECES, pick.choice(good), ""))
        path = written(tmp_path, good[:begin] + piece + good[begin + pick.choice((0, 1, 1, 5)) :])
        try:
            found = load(path)
        except BadSpecFile as problem:
            assert len(str(problem)) < 3000
            outcomes[False] += 1
            continue
        add(path, {})
        again = load(path)
        assert again.wanted == found.wanted
        outcomes[True] += 1
    assert outcomes[True] > 100 and outcomes[False] > 300


# ---- files that people name: whole or not at all, links and pipes as they are

ENTRY = KernelKey(SPEC, "sm_90")


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_text(path, "first", "x")
    path.chmod(0o600)
    with pytest.raises(OSError, match="No space"), replaced(path) as draft:
        draft.write_text("half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
    write_text(path, "second", "x")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("second", 0o600)
    for refused in (tmp_path / "absent" / "x", tmp_path):
        with pytest.raises(UnusableFile, match="write what was asked"):
            write_text(refused, "text", "what was asked")
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "specs.toml").symlink_to(tmp_path / "kept" / "specs.toml")
    for count in (2, 3):
        add(tmp_path / "specs.toml", {ENTRY: count})
    assert (tmp_path / "specs.toml").is_symlink() and load(tmp_path / "kept" / "specs.toml").wanted == {ENTRY[:2]: 5}


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """Counts, however, are added to plain files alone: a device would be replaced by a file, and a pipe waited for."""
    path, heard = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: heard.append(path.read_text()))
    reader.start()
    write_text(path, "text", "x")
    reader.join()
    for refused in (path, tmp_path):
        for act in (check_writable, lambda path: add(path, {ENTRY: 1})):
            with pytest.raises(BadSpecFile, match="a plain file"):
                act(refused)
    assert heard == ["text"] and stat.S_ISFIFO(path.stat().st_mode)
