"""README.md and docs/: every code block runs as printed, every figure and every link is current.

A Python block runs in an empty folder, in a process of its own, in which it has to import what it names. The words
after ``python`` say what a block needs: ``gpu``, ``g++``, ``slow`` (set SLOW_DOCS=1), or ``continued``, which runs the
blocks above it on the page first. A comment after ``print(...)`` is what it prints.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import scanops
from scanops import environment
from scanops.cli import main
from scanops.codegen.dtypes import DTYPES
from scanops.codegen.slugs import PREFIXES, WORDS
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import TARGETS, target_of_capability
from scanops.errors import UnsupportedRequest
from tests.native.conftest import copy_library
from tests.scripts import ROOT, Forked, ran
from tests.store.sources import needs_nvrtc, script

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md")]
PAGES += sorted(ROOT.glob("docs/**/*.md"))
(SOURCE,) = re.findall(r'^Source = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
NEEDS = {"gpu", "g++", "slow", "continued"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    needs: frozenset[str]
    text: str

    @property
    def at(self) -> str:
        """The page and the line, as an error of the block names it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: found.start()].count("\n") + 1, found[1], frozenset(found[2].split()), found[3])
        for found in re.finditer(r"^```(\w*)([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def parameter(block: Block) -> object:
    """The block with the marks that skip it, visibly, where what it needs is missing."""
    marks = [pytest.mark.gpu] if "gpu" in block.needs else []
    marks += [pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")] if "g++" in block.needs else []
    if "slow" in block.needs:
        off = not os.environ.get("SLOW_DOCS")
        marks += [pytest.mark.slow, pytest.mark.skipif(off, reason="slow: set SLOW_DOCS=1 to run it")]
    return pytest.param(block, id=block.at, marks=marks)


PYTHON = [parameter(block) for block in BLOCKS if block.language == "python"]
COMMANDS = [
    (block, line)
    for block in BLOCKS
    if block.language == "sh"
    for line in re.sub(r"\\\n", "", block.text).splitlines()
    if re.match(r"(\w+=\S+ )*scanops ", line)
]


def same(printed: str, said: str) -> bool:
    """Whether a printed line is what the page says, numbers to four digits."""
    if printed == said:
        return True
    try:
        names = {"inf": float("inf"), "nan": float("nan")}
        found, wanted = (eval(text.strip(), {"__builtins__": {}}, names) for text in (printed, said))
        return bool(found == pytest.approx(wanted, rel=1e-4, abs=1e-4, nan_ok=True))
    except (SyntaxError, NameError, TypeError):
        return False


@pytest.mark.parametrize("block", PYTHON)
def test_python_block_runs_as_printed(block: Block, forked: Forked, tmp_path: Path) -> None:
    above = [each for each in blocks_of(block.page) if each.language == "python" and each.line < block.line]
    texts = [*(above if "continued" in block.needs else []), block]
    printed = forked(tmp_path, *((each.at, each.text) for each in texts)).splitlines()
    said = re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE)
    if said:
        assert len(said) == block.text.count("print("), "a print without its result"
        assert len(printed) == len(said), printed
        assert [pair for pair in zip(printed, said, strict=True) if not same(*pair)] == []


def test_the_page_on_a_kernel_shows_its_text() -> None:
    text = generate(ScanSpec.parse("sum-f32-n1024"), "sm_90")
    shown = [block for block in BLOCKS if block.page.name == "a-kernel.md"]
    assert len(shown) > 6 and [block.at for block in shown if block.text not in text] == []


def test_every_block_has_a_language_and_known_needs() -> None:
    known = {"python", "sh", "toml", "diff", "cpp", "dockerfile"}
    assert [block.at for block in BLOCKS if block.language not in known or not block.needs <= NEEDS] == []
    first = next(block for block in BLOCKS if block.language == "python")
    assert first.page.name == "README.md" and first.line < 28, "the first screen has no example"
    assert len(PYTHON) > 40


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=[f"{block.at} {line[:40]}" for block, line in COMMANDS])
def test_command_exists_and_takes_these_arguments(block: Block, line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[words.index("scanops") + 1 :]
    command = main.commands[words[0]]
    command.make_parser(command.make_context(words[0], [], resilient_parsing=True)).parse_args(words[1:])


def test_benchmark_tables_are_current() -> None:
    from benchmarks import readme

    assert readme.main(["--check"]) == 0


def test_the_first_sentence_states_what_was_measured() -> None:
    from benchmarks import readme

    low, high, theirs = readme.row_sums(readme.results())
    first = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[2].split())
    assert f"{low:.2f} to {high:.2f} of the bandwidth" in first and f"at most {theirs:.2f}" in first


def test_every_link_leads_somewhere() -> None:
    for page in [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md"))]:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        missing = []
        for link in [part.split(")", 1)[0] for part in text.split("](")[1:]]:
            path, _, anchor = link.partition("#")
            for kind in ("blob", "tree"):  # absolute, as an index of packages shows the page
                path = path.removeprefix(f"{SOURCE}/{kind}/main/")
            target = page.parent / path if path else page
            if "://" in path or (target.exists() and (not anchor or anchor in anchors(target))):
                continue
            missing.append(link)
        assert not missing, f"{page}: {missing}"


def test_the_readme_of_the_package() -> None:
    """An index of packages has no files beside it: links are absolute. The first page of docs/ begins with its text."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#][^)]*)\)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    assert [link for link in links if not link.startswith("https://")] == []
    hosted = re.findall(r"https://github\.com/[^)\s]*", text)
    assert hosted and all(link.startswith((f"{SOURCE}/blob/main/", f"{SOURCE}/tree/main/")) for link in hosted)
    # The site and docs/ have copies of all files, and lead to those.
    for page in ROOT.glob("docs/**/*.md"):
        assert f"{SOURCE}/" not in page.read_text(encoding="utf-8"), page
    first = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    shared = first.split("of README.md -->\n")[1].split("<!-- intro end")[0]
    assert shared in text and "```python" in shared and f"Version {scanops.__version__}." in first


def test_the_site_has_every_page_and_every_public_name() -> None:
    """`make site` fails on links and docstrings; what it would leave out without a word is found here."""
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in sorted(ROOT.glob("docs/**/*.md"))]
    assert [page for page in pages if f"{page}\n" not in site] == []
    reference = (ROOT / "tools/site.py").read_text(encoding="utf-8").split("REFERENCE = {")[1].split("}")[0]
    assert set(scanops.__all__) - set(re.findall(r"\w+", reference)) == {"__version__"}


def anchors(page: Path) -> set[str]:
    """The anchors that headings of a page have on GitHub."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def rows_of(page: str, title: str) -> list[list[str]]:
    """The cells of the rows of the table below a heading, without its head."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_of_short_names_is_complete() -> None:
    cells = [cell.strip("`") for row in rows_of("short-names.md", "dtype codes") for cell in row]
    assert {code: name for code, name in zip(cells[::2], cells[1::2], strict=True) if code} == {
        row.tag: name for name, row in DTYPES.items()
    }
    valued = rows_of("short-names.md", "Suffixes with a value")
    assert {row[1].strip("`") for row in valued} == set(PREFIXES.values()) - {"length"}
    for words, field, _ in valued:
        for word in re.findall(r"`([^`]+)`", words):
            assert [PREFIXES[prefix] for prefix in PREFIXES if word.startswith(prefix)] == [field.strip("`")], word
    plain = rows_of("short-names.md", "Suffixes without a value")
    named = {word: row[1] for row in plain for word in re.findall(r"`([^`]+)`", row[0])}
    assert list(named) == list(WORDS), "the order of the table is that of names"
    assert [word for word, (field, _) in WORDS.items() if field not in named[word]] == []


def test_every_short_name_that_is_mentioned_is_one() -> None:
    pattern = r"\b(?:sum|prod|max|cummax|linear|logcumsumexp)-[a-z0-9]+-(?:n\d+|any)[\w-]*"
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in set(re.findall(pattern, text)):
        assert str(ScanSpec.parse(name)) == name


def test_the_page_of_targets_is_what_a_call_looks_for() -> None:
    rows = rows_of("gpus-and-targets.md", "Which target does my GPU need?")
    for capability, _, target, nvcc in rows:
        major, minor = map(int, capability.split("."))
        assert target_of_capability((major, minor)) == target.strip("`")
        assert nvcc
    assert {row[2].strip("`") for row in rows} == TARGETS.keys()
    for capability in ((6, 1), (11, 0)):
        with pytest.raises(UnsupportedRequest, match="sm_90"):
            target_of_capability(capability)


def test_every_environment_variable_is_in_the_table() -> None:
    rows = [line for line in (ROOT / "docs/deployment.md").read_text().split("## Variables\n")[1].splitlines()]
    assert [line for line in rows if line.startswith("| `")] == [
        f"| `{row.name}` | {row.default} | {row.meaning} |" for row in environment.VARIABLES
    ]


# ---- the commands of docs/deployment.md do what the page says

DEPLOYED = """
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


@pytest.mark.slow
@needs_nvrtc
def test_the_stages_of_the_docker_image(tmp_path: Path) -> None:
    """The commands of both stages but those that install packages, each stage in a folder of its own."""
    (block,) = (block for block in BLOCKS if block.page.name == "deployment.md" and block.language == "dockerfile")
    build, run = (re.findall(r"^RUN (scanops .*)$", stage, re.MULTILINE) for stage in block.text.split("\n\n"))
    (settings,) = re.findall(r"^ENV (.*)$", block.text, re.MULTILINE)
    changes = dict(each.split("=") for each in settings.split())
    assert len(build) == 3 and len(run) == 2 and changes["SCANOPS_POLICY"] == "never"
    (tmp_path / "build").mkdir()
    copy_library(tmp_path / "build" / "pack")
    (tmp_path / "build" / "specs.toml").write_text('specs = ["sum-f32-n32768", "sum-f32-n4096-inner64"]')
    shutil.copy(tmp_path / "build" / "specs.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "scanops", f'exec {sys.executable} -m scanops "$@"')

    def place(text: str) -> str:
        return text.replace("/opt/", f"{tmp_path}/opt/").replace("/build/", f"{tmp_path}/build/")

    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    text = f"umask 022\n{place(chr(10).join(build))}"
    ran("/bin/sh", "-euc", text, folder=tmp_path, PATH=path, PYTHONPATH=str(ROOT))
    shutil.rmtree(tmp_path / "build")
    bare = {"PATH": str(tmp_path / "bin"), "HOME": f"{tmp_path}/none", "SCANOPS_STORE": f"{tmp_path}/none"}
    for line in run:
        environment_of_stage = {name: place(value) for name, value in changes.items()} | bare
        said = ran("/bin/sh", "-euc", line, folder=tmp_path, PYTHONPATH=str(ROOT), **environment_of_stage).stdout
        assert re.search(r"^(\d+) of \1 kernels found$", said, re.MULTILINE), said


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_from_a_laptop_to_a_container(tmp_path: Path) -> None:
    first, *others = [block.text for block in BLOCKS if block.page.name == "deployment.md" and block.language == "sh"]
    laptop, container = first.split("# in the container")
    assert len([line for line in first.splitlines() if not line.startswith("#")]) <= 10
    (tmp_path / "laptop").mkdir()
    script(tmp_path / "laptop" / "scanops", f'exec {sys.executable} -m scanops "$@"')
    shell(laptop, tmp_path, PATH=f"{tmp_path / 'laptop'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "kernels").rename(tmp_path / "left-behind")
    # No compiler, no ninja, no store and a HOME that cannot be made.
    (tmp_path / "file").touch()
    bare = {"HOME": f"{tmp_path}/file/home", "SCANOPS_STORE": f"{tmp_path}/absent", "PATH": str(tmp_path / "laptop")}
    run = script(tmp_path / "laptop" / "run", f'exec {sys.executable} -c "$1"')
    said = shell(f"#{container}\n{run.name} '{DEPLOYED}'", tmp_path, **bare)
    assert "signed by" in said and "opt/kernels: found" in said
    assert Path(said.splitlines()[-1]).is_relative_to(tmp_path / "opt" / "kernels")
    (checks,) = (text for text in others if "pkeyutl" in text)
    assert "Success" in shell(checks, tmp_path)
