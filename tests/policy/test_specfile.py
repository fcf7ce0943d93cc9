"""Spec files: what they stand for, and what is said of those that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops import ScanSpec
from scanops.errors import BadSpecFile, UnsupportedRequest
from scanops.precompile import expected
from scanops.specfile import load


def written(folder: Path, text: str) -> Path:
    path = folder / "specs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_stands_for_a_product(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'specs = ["prod-f32-n9"]\n[[scan]]\nop = ["sum", "prod"]\ndtype = ["float32", "bfloat16"]\n'
        'length = [64, 128, "any"]\nreverse = true\n',
    )
    found = [spec for spec, *_ in load(path).wanted]
    wanted = [
        ScanSpec(op=op, dtype=dtype, length=length, reverse=True)
        for op in ("sum", "prod")
        for dtype in ("float32", "bfloat16")
        for length in (64, 128, None)
    ]
    assert found == [ScanSpec(op="prod", dtype="float32", length=9), *wanted]


def test_targets_of_the_file_of_a_table_and_of_the_command(tmp_path: Path) -> None:
    path = written(tmp_path, 'targets = ["sm_80", "sm_90"]\n[[scan]]\nspec = "sum-f32-n9"\ntarget = "cpu"\n')
    one = ScanSpec(op="sum", dtype="float32", length=9)
    assert expected(load(path).wanted, [], path) == [(one, "cpu", False)]
    assert expected(load(path).wanted, ["sm_100", "sm_90"], path) == [(one, "sm_100", False), (one, "sm_90", False)]
    path = written(tmp_path, 'specs = ["sum-f32-n9"]\n')
    with pytest.raises(UnsupportedRequest, match="--targets"):
        expected(load(path).wanted, [], path)


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
        ('[[scan]]\nop = "sum"\nlength = 3', "number 1", "dtype"),
        ('[[scan]]\nop = "sum"\ndtype = "float31"\nlength = 3', "number 1", "float31"),
        ('[[scan]]\nop = "sum"\ndtype = "float32"\nlength = [4, 0]', "number 1", "0"),
        ('[[scan]]\nop = "sum"\ndtype = "float32"\nlength = "4"', "number 1", "4"),
        ('[[scan]]\nop = "sum"\ndtype = 32\nlength = 4', "number 1", "32"),
        ('[[scan]]\nop = "sum"\ndtype = "float32"\nlength = 4\nbackward = true', "number 1", "backward"),
    ],
)
def test_what_makes_no_sense(text: str, place: str, value: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadSpecFile) as caught:
        load(path)
    assert str(path) in caught.value.asked and place in caught.value.asked
    assert value in str(caught.value.value)
