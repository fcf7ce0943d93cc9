"""The text of kernels: whole, the same in every process; ``generated/``, and the command that writes it."""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanops import ScanSpec, generate, make_plan
from scanops.codegen.plan import STRATEGIES
from scanops.codegen.source import environment, render
from scanops.codegen.targets import TARGETS
from tests.codegen.strategies import specs
from tests.scripts import ROOT, ran
from tools.golden import GOLDEN, Golden, golden_files, main


def test_generated_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """Every file is as rendered now, and there are no others."""
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert {path.name for path in (ROOT / "generated").iterdir()} == golden_files().keys()


def test_the_list_shows_each_strategy_and_each_class() -> None:
    """At most 20 kernels, so that a reader can look at all of them; slugs are canonical and differ."""
    specs = [row.spec for row in GOLDEN]
    assert [spec.slug for spec in specs] == [row.slug for row in GOLDEN]
    assert len({row.slug for row in GOLDEN}) == len({row.shows for row in GOLDEN}) == len(GOLDEN) <= 20
    assert {row.plan.strategy for row in GOLDEN} == set(STRATEGIES)
    assert {spec.accumulator.kind for spec in specs} == {"int", "float", "complex"}
    assert {spec.operator.name for spec in specs} >= {"sum", "prod", "linear", "logcumsumexp", "cummax"}
    assert {(spec.reverse, spec.exclusive) for spec in specs} >= {(False, False), (True, False), (True, True)}


def test_the_command_writes_checks_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files without the banner are kept, and a check reports stale and missing files without writing them."""
    here = ["--directory", str(tmp_path)]
    (tmp_path / "sum-f32-n5.cu").write_text(generate(ScanSpec(op="sum", dtype="float32", length=5)))
    (tmp_path / "own.cu").write_text("// somebody's own\n")
    assert main(here) == 0
    assert "removed sum-f32-n5.cu" in capsys.readouterr().out
    written = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "own.cu"}
    assert written == golden_files() and (tmp_path / "own.cu").exists()
    assert main(["--check", *here]) == 0

    stale, missing = (tmp_path / row.file for row in GOLDEN[:2])
    text = stale.read_text().replace("scan_kernel", "kernel")
    stale.write_text(text)
    missing.unlink()
    capsys.readouterr()
    assert main(["--check", *here]) == 1
    said = capsys.readouterr().out
    assert f"{stale.name}: stale" in said and f"{missing.name}: missing" in said and "+scan_kernel" in said
    assert len(said.splitlines()) < 40
    assert stale.read_text() == text and not missing.exists()


RENDER = """
import hashlib, sys
from scanops import ScanSpec, generate
from tests.scripts import ROOT, ran
from tools.golden import golden_files
for name, text in golden_files().items():
    print(name, hashlib.sha256(text.encode()).hexdigest())
for target in sys.argv[1].split(","):
    for slug in sys.argv[2].split(","):
        print(target, slug, hashlib.sha256(generate(ScanSpec.parse(slug), target).encode()).hexdigest())
assert "torch" not in sys.modules, "codegen imported torch"
"""
FEW = ("sum-bf16-n100", "prod-f32-n32768-mask_f32-reverse", "sum-f64-n9-inner9-strided", "sum-f32-n99999999")


def body_below_banner(source: str) -> str:
    """The text that the banner's digest covers: all below the comment lines and the blank line after them."""
    return source.split("\n\n", 1)[1]


def test_two_processes_render_the_same_bytes(tmp_path: Path) -> None:
    """With other hash seeds, directories, users and time zones; and torch is not imported on the way."""
    outputs = []
    for number in ("1", "2"):
        directory = tmp_path / number
        directory.mkdir()
        names = {"PYTHONHASHSEED": number, "HOME": str(directory), "USER": f"user{number}", "TZ": f"UTC+{number}"}
        words = (sys.executable, "-c", RENDER, ",".join(TARGETS), ",".join(FEW))
        outputs.append(ran(*words, folder=directory, LC_ALL="C", PYTHONPATH=str(ROOT), **names).stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == len(GOLDEN) + 1 + len(TARGETS) * len(FEW)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.slug)
def test_the_banner_tells_the_truth(row: Golden) -> None:
    """The digest is that of the body, and the command names this kernel; the text is ASCII."""
    lines = row.spec.inner if row.few else None
    text = generate(row.spec, "sm_75", lines=lines)
    banner = text.split("\n\n", 1)[0]
    assert text.isascii() and all(line.startswith("//") for line in banner.splitlines())
    digest = re.search(r"^// content  sha256 ([0-9a-f]{16,64}) ", banner, re.MULTILINE)
    assert digest and hashlib.sha256(body_below_banner(text).encode()).hexdigest().startswith(digest[1])
    again = re.search(r"^// again    (.+)$", banner, re.MULTILINE)
    assert again and shlex.split(again[1]) == [
        *("scanops", "generate", row.slug, "--target", "sm_75"),
        *(("--lines", str(lines)) if lines else ()),
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_targets_differ_in_banner_and_intrinsics_alone(target: str) -> None:
    """One body serves all targets, except for what intrinsics.cuh.j2 decides."""
    spec = ScanSpec.parse("sum-f32-n4096-mask_f32")
    assert body_below_banner(generate(spec, target)) == body_below_banner(generate(spec))
    bfloat = generate(ScanSpec.parse("sum-bf16-n100"), target)
    assert ("cvt.rn.bf16" in bfloat) == TARGETS[target].bfloat_convert


FUNCTION = re.compile(r"^__device__ .*?(\w+)\(", re.MULTILINE)
CONSTANT = re.compile(r"^constexpr (?:\w+ )+(\w+) = ", re.MULTILINE)
TYPE = re.compile(r"^(?:typedef .*?(\w+);|struct (?:alignas\(.*\) )?(\w+) \{)", re.MULTILINE)
EXPORTED = ["scanops_abi", "scanops_error_string", "scanops_workspace_bytes", "scanops_launch"]
NOT_IN_GOLDENS = {"__funnelshift_r", "alignof", "atan2", "cos", "frexp", "hypot", "ldexp", "log", "log1p", "sin"}


def undeclared(source: str) -> set[str]:
    """Functions that a text calls and does not declare."""
    code = re.sub(r"//.*", "", source)
    return set(re.findall(r"(?<![\w.])(\w+)(?:<[\w -]+>)?\(", code)) - set(FUNCTION.findall(code))


@functools.cache
def provided() -> set[str]:
    """Functions of CUDA and C++: what goldens, which compilers accept, call and do not declare."""
    return NOT_IN_GOLDENS.union(*(undeclared(render(golden.plan)) for golden in GOLDEN))


def faults(source: str) -> set[str]:
    """What is wrong with the text of a kernel, in words."""
    declared = {name for pattern in (FUNCTION, CONSTANT, TYPE) for name in re.findall(r"\w+", listed(pattern, source))}
    counts = Counter(re.findall(r"\w+", source))
    found = {f"{name} is not used" for name in declared if counts[name] == 1}
    found |= {f"{name} is not declared" for name in undeclared(source) - provided()}
    body = source.split("\n\n", 1)[1]
    found |= {f"{word} is of Python" for word in ("None", "True", "False") if re.search(rf"\b{word}\b", body)}
    if re.findall(r'extern "C" (?!__global__).*?(\w+)\(', source) != EXPORTED or source.count("__global__") != 1:
        found.add("another interface")
    if re.search(r"[ \t]+$|\t|\n\n\n|\n\n\Z", source, re.MULTILINE) or not source.endswith("\n"):
        found.add("blanks")
    return found


def listed(pattern: re.Pattern[str], source: str) -> str:
    """The names that a pattern declares, as words."""
    return " ".join("".join(groups) for groups in (match.groups(default="") for match in pattern.finditer(source)))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.slug)
def test_committed_kernels_are_whole(golden: Golden) -> None:
    """Each strategy and class of states: every function, constant and type is used."""
    assert faults(render(golden.plan)) == set()


@settings(max_examples=100)
@given(specs, st.booleans())
def test_the_kernel_of_any_spec_is_whole(spec: ScanSpec, few: bool) -> None:
    """The same for specs drawn from all that ScanSpec accepts."""
    assert faults(render(make_plan(spec, few=few))) == set()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("constexpr int kItems", "constexpr int kIdle = 4;\nconstexpr int kItems", "kIdle is not used"),
        ('extern "C" __g', '__device__ void idle() {}\nextern "C" __g', "idle is not used"),
        ("typedef float Input;", "typedef float Idle;\ntypedef float Input;", "Idle is not used"),
        ("= lift_items(", "= lift_item(", "lift_item is not declared"),
        ("= 4;", "= None;", "None is of Python"),
        ("scanops_abi", "scanops_version", "another interface"),
        (";\n", "; \n", "blanks"),
    ],
)
def test_faults_are_found(old: str, new: str, fault: str) -> None:
    """The tests above would pass if the patterns matched nothing."""
    source = generate(ScanSpec.parse("sum-f32-n4"))
    assert old in source and fault in faults(source.replace(old, new))


def test_an_undefined_name_is_an_error() -> None:
    """Jinja renders it as nothing by default."""
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ absent }}").render()
