"""Print figures of the project's structure and runtime, to see how they develop: ``python tools/figures.py``.

``--structure`` leaves out the figures that need time or a C++ call path, as the tests do; ``--json`` prints JSON. No
figure is a limit. Figures of time are measured on this machine.

Lines are those of files with the suffixes .py, .cpp and .h that git tracks, comments and blank lines included. The
files that name a keyword are those of the package and of codegen, comments and docstrings aside. The
functions and files of a first call are those of this repository that run, with the compiler stubbed, other than while a
module is imported.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import functools
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import scanops
from scanops import api, relatives
from scanops.builders import unavailable

__all__ = ["Figure", "keyword_files", "main", "structure", "times"]

ROOT = Path(__file__).resolve().parent.parent
COUNTED = {".py", ".cpp", ".h"}
LONG_FILE = 300  # lines
MOST_COLUMNS = 120  # of a line
SHORT_DOCSTRING = 5  # words


@dataclass(frozen=True)
class Figure:
    """One figure, and a note on what it counts."""

    name: str
    value: float
    note: str = ""


# ---- what git tracks ----


def list_tracked(*folders: str) -> list[Path]:
    """Return the files below these folders that git tracks and that exist."""
    command = ["git", "ls-files", "-z", "--cached", "--", *folders]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def sources(folder: str, without: str | None = None) -> list[Path]:
    """Return the tracked sources below ``folder``, less those below ``without``."""
    left_out = ROOT / without if without else None
    found = [path for path in list_tracked(folder) if path.suffix in COUNTED]
    return [path for path in found if left_out is None or left_out not in path.parents]


def lines(paths: Sequence[Path]) -> int:
    """Return the number of lines of these files together."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def short_docstrings(paths: Sequence[Path]) -> Iterator[str]:
    """Yield ``file:line`` of every docstring of fewer than five words."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in paths:
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                text = ast.get_docstring(node) if isinstance(node, kinds) else None
                if text is not None and len(text.split()) < SHORT_DOCSTRING:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def list_words(path: Path) -> set[str]:
    """Return the names in the code of a file and its one-word strings, but no calls of built-in functions."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"\w+", re.sub(r"//.*|/\*(.|\n)*?\*/", "", text)))
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    found, module = set(), ""
    for token, after in pairwise(tokens):
        if token.type in (tokenize.NAME, tokenize.STRING):
            word = token.string.strip("\"'")
            is_built_in = token.type == tokenize.NAME and after.string == "(" and hasattr(builtins, word)
            if module != "itertools" and not is_built_in:
                found.add(word)
            module = word
    return found


def keyword_files() -> dict[str, list[str]]:
    """Return the files of the package and of codegen that name each keyword of the public scans."""
    scans = [getattr(scanops, name) for name in (*api.__all__, *relatives.__all__)]
    parameters = [each for scan in scans for each in inspect.signature(scan).parameters.values()]
    words = {path: list_words(path) for folder in ("scanops", "codegen") for path in sources(folder)}
    return {
        each.name: sorted(str(path.relative_to(ROOT)) for path in words if each.name in words[path])
        for each in parameters
        if each.kind is each.KEYWORD_ONLY
    }


def directive_percent(templates: Sequence[Path]) -> float:
    """Return the percentage of template lines that hold a Jinja statement."""
    texts = [line for path in templates for line in path.read_text(encoding="utf-8").splitlines()]
    return round(100 * sum("{%" in line for line in texts) / max(1, len(texts)), 1)


def tag_percent(templates: Sequence[Path]) -> float:
    """Return the percentage of template lines that hold a Jinja statement or expression."""
    texts = [line for path in templates for line in path.read_text(encoding="utf-8").splitlines()]
    return round(100 * sum("{%" in line or "{{" in line for line in texts) / max(1, len(texts)), 1)


def find_embedded_statements(text: str) -> list[str]:
    """Return the strings in the Jinja tags of a template that hold a C++ statement: one that ends or opens a block."""
    strings = [found for tag in _TAG.findall(text) for found in re.findall(r'"((?:[^"\\\\]|\\\\.)*)"', tag)]
    return [each for each in strings if re.search(r"[;{}]", each.replace("{}", ""))]


_TAG = re.compile(r"\{[{%].*?[}%]\}", re.DOTALL)


def find_repeated_names(paths: Sequence[Path]) -> dict[str, dict[str, list[str]]]:
    """Return the names of classes, of aliases and of modules that several modules have, with the files of each.

    A name that is a class in one module and an alias in another one counts as a class.
    """
    found: dict[str, dict[str, list[str]]] = {"classes": {}, "aliases": {}, "modules": {}}
    for path in paths:
        name = str(path.relative_to(ROOT))
        if path.suffix == ".py" and path.stem not in ("__init__", "__main__"):
            found["modules"].setdefault(path.stem, []).append(name)
        for node in ast.parse(path.read_text(encoding="utf-8")).body if path.suffix == ".py" else ():
            if isinstance(node, ast.ClassDef):
                found["classes"].setdefault(node.name, []).append(name)
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and re.match("[A-Z][a-z]", target.id):
                found["aliases"].setdefault(target.id, []).append(name)
    for name in found["classes"].keys() & found["aliases"].keys():
        found["classes"][name] += found["aliases"].pop(name)
    return {kind: {name: at for name, at in names.items() if len(at) > 1} for kind, names in found.items()}


IRREGULAR = {
    *(
        "bound",
        "built",
        "cut",
        "drawn",
        "found",
        "given",
        "held",
        "kept",
        "known",
        "laid",
        "made",
        "met",
        "said",
        "sent",
    ),
    *("shown", "taken", "told", "written"),
}
NOUNS = {"bed", "embed", "feed", "need", "seed", "speed"}  # that end as participles do
PUBLIC = {"generalized_advantage_estimate"}  # a name that users know from elsewhere


def participles(paths: Sequence[Path]) -> list[str]:
    """Return ``file:line name`` of each function whose name is a participle, or begins or ends with one.

    Properties are left out: they are values. So are functions of tests and nested functions.
    """
    found = []
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.suffix == ".py" else ast.Module([], [])
        for node in (each for each in ast.walk(tree) if isinstance(each, (ast.Module, ast.ClassDef))):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and not each.decorator_list:
                    first = each.name.strip("_").split("_")[0]
                    if each.name not in PUBLIC and (
                        first in IRREGULAR or (first.endswith("ed") and first not in NOUNS)
                    ):
                        found.append(f"{path.relative_to(ROOT)}:{each.lineno} {each.name}")
    return found


_CONSTANT = re.compile(
    r"^(?:    (?=static))?(?:static |inline )*constexpr [^({=;]*?\b(\w+)(?:\[\w*\])?\s*(?:=|\{)", re.MULTILINE
)


def lower_case_constants(text: str) -> list[str]:
    """Return the constants of a kernel, at file scope or of a class, that are not called ``kLikeThis``.

    A ``constexpr`` variable of a function is a value like its others.
    """
    return [name for name in _CONSTANT.findall(text) if not re.match("k[A-Z]", name)]


def directive_depth(text: str) -> int:
    """Return how deep the Jinja statements of a template nest, macros and blocks themselves not counted."""
    depth = deepest = 0
    for word in re.findall(r"\{%-?\s*(end\w+|if|for)\b", text):
        depth += word in ("if", "for")
        depth -= word in ("endif", "endfor")
        deepest = max(deepest, depth)
    return deepest


def plan_members() -> int:
    """Return the public members of a plan, the maximum over the committed kernels and so over the strategies."""
    program = """
import sys
from scanops import ScanSpec, make_plan
print(max(sum(name[0] != "_" for name in dir(make_plan(ScanSpec.parse(slug)))) for slug in sys.argv[1:]))
"""
    slugs = [path.stem for path in list_tracked("generated") if path.suffix == ".cu"]
    with tempfile.TemporaryDirectory() as folder:
        return int(_run(program, folder, *slugs))


def structure() -> list[Figure]:
    """Return the figures that follow from the sources, and from one first call with the compiler stubbed."""
    package, tests = sources("scanops", without="scanops/emulator"), sources("tests")
    templates = [path for path in list_tracked("templates") if path.suffix in (".j2", ".cuh")]
    kernels = [path for path in list_tracked("generated") if path.suffix == ".cu"]
    short = list(short_docstrings([*package, *sources("codegen"), *sources("tools"), *sources("benchmarks")]))
    long = [path for path in package if lines([path]) > LONG_FILE]
    large = [path for path in sources("codegen") if lines([path]) > LONG_FILE]
    texts = [path.read_text(encoding="utf-8") for path in templates]
    wide = sum(len(line) > MOST_COLUMNS for text in texts for line in text.splitlines())
    functions, files = first_call()
    named = participles([*sources("scanops"), *sources("codegen")])
    ours, places = ({name for name in names if name.startswith("scanops/")} for names in (functions, files))
    return [
        Figure("functions of a first call, in scanops", len(ours)),
        Figure("files of a first call, in scanops", len(places)),
        Figure("functions of a first call, with codegen", len(functions)),
        Figure("files of a first call, with codegen", len(files)),
        Figure("lines of scanops without the emulator", lines(package)),
        Figure("files of scanops without the emulator", len(package)),
        Figure("lines of tests", lines(tests)),
        Figure("docstrings of fewer than five words", len(short), note=", ".join(short[:3])),
        Figure(
            "files of scanops over 300 lines", len(long), note=", ".join(str(p.relative_to(ROOT)) for p in long[:8])
        ),
        Figure("lines of benchmarks", lines(sources("benchmarks"))),
        Figure("lines of codegen", lines(sources("codegen"))),
        Figure("lines of templates", _template_lines(templates)),
        Figure("percent of template lines with a directive", directive_percent(templates)),
        Figure("percent of template lines with any tag", tag_percent(templates)),
        Figure("C++ statements in strings of Jinja tags", sum(len(find_embedded_statements(text)) for text in texts)),
        *(
            Figure(f"{kind} of the same name in several modules", len(names), note=", ".join(names))
            for kind, names in find_repeated_names([*sources("scanops"), *sources("codegen")]).items()
        ),
        Figure("functions whose names are participles", len(named), note=", ".join(each.split()[1] for each in named)),
        Figure("files of a first fused call beyond a plain one", len(first_call(FUSED)[1] - files)),
        Figure("functions of a repeated sharded call", count_sharded_functions()),
        Figure("deepest nesting of directives in a template", max(map(directive_depth, texts))),
        Figure("template lines over 120 columns", wide),
        Figure("codegen files over 300 lines", len(large), note=", ".join(p.name for p in large)),
        Figure("most public members of a plan", plan_members()),
        Figure("committed kernels", len(kernels)),
        *(Figure(f"files that name the keyword {word}", len(found)) for word, found in keyword_files().items()),
    ]


def _template_lines(templates: Sequence[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in templates)


# ---- calls, each in a process of its own ----

STUB = """
int scanops_abi(void) { return %d; }
int scanops_launch(void) { return 0; }
const char* scanops_error_string(int code) { return ""; }
void scanops_emulator_configure(unsigned long long seed, int multiprocessors) {}
"""
# Runs a first call with a builder that copies a prebuilt library, and prints the functions of the repository it ran.
FIRST_CALL = """
import inspect, json, os, shutil, subprocess, sys
import torch, scanops
from scanops import build_request, builders
root, stub = sys.argv[1], sys.argv[2]
text = open(stub + ".c").read() % build_request.ABI
subprocess.run(["cc", "-x", "c", "-shared", "-fPIC", "-", "-o", stub], input=text, text=True, check=True)
def stub_build(request, directory):
    library = directory / "kernel.so"
    shutil.copy(stub, library)
    return build_request.BuildReport(file=library, seconds=0.0, resources=None, toolchain={"route": "stub"})
builders.build = stub_build
ran, importing = set(), 0
def profile(frame, event, _):
    global importing
    code = frame.f_code
    if event in ("call", "return") and code.co_name == "<module>":
        importing += 1 if event == "call" else -1
    # Bodies of classes are not optimized code; comprehensions belong to their function.
    elif event == "call" and not importing and code.co_flags & inspect.CO_OPTIMIZED:
        named = code.co_name[0] != "<" or code.co_name == "<lambda>"
        if named and code.co_filename.startswith((root + "/scanops/", root + "/codegen/")):
            ran.add((code.co_filename[len(root) + 1:], getattr(code, "co_qualname", code.co_name), code.co_firstlineno))
x = torch.randn(8, 1024)
call = eval("lambda: " + sys.argv[3])
with scanops.emulate():
    sys.setprofile(profile)
    call()
    sys.setprofile(None)
print(json.dumps(sorted(ran)))
"""
PLAIN = "scanops.cumsum(x, -1)"
FUSED = "scanops.scan((x, x), 'sum', -1, map=torch.mul)"
# Counts the Python functions of a repeated call of lines that are sharded over two ranks.
SHARDED = """
import os, sys, torch, torch.distributed as dist, scanops.distributed
child = os.fork()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(child == 0), world_size=2)
x, ran = torch.randn(8, 1024), set()
def profile(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(sys.argv[1]) and code.co_name[0] != "<":
        ran.add((code.co_filename, code.co_name, code.co_firstlineno))
with scanops.emulate():
    for _ in range(4):
        scanops.distributed.cumsum(x, -1)
    sys.setprofile(profile)
    scanops.distributed.cumsum(x, -1)
    sys.setprofile(None)
dist.destroy_process_group()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print(len(ran))
"""
IMPORT = """
import time, torch
began = time.perf_counter()
import scanops
print(1e3 * (time.perf_counter() - began))
"""
# Until nothing is left to a first launch; a driver that does nothing takes cubins.
FROM_DISK = """
import sys, time, torch, scanops
from scanops.codegen.kernel_key import KernelKey
from scanops.runtime import kernels
spec = scanops.ScanSpec.parse("sum-f32-n1024")
began = time.perf_counter()
kernel = kernels.find(KernelKey(spec, sys.argv[1]))
kernel.load_on_device(0)
print(1e3 * (time.perf_counter() - began))
"""
BUILD = """
import sys, scanops
scanops.compile(scanops.ScanSpec.parse("sum-f32-n1024"), sys.argv[1], builder=sys.argv[2])
"""
DRIVER = """
int cuDriverGetVersion(int* version) { return *version = 12000, 0; }
int cuLibraryGetKernel(void** kernel) { return *kernel = "a kernel", 0; }
""" + "".join(
    f"int {name}() {{ return 0; }}\n"
    for name in (
        *("cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2", "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain"),
        *("cuGetErrorName", "cuGetErrorString", "cuKernelGetFunction", "cuKernelSetAttribute"),
        *("cuLibraryLoadData", "cuLaunchKernel"),
    )
)
FORMS = {"library": ("cpu", "auto"), "cubin": ("sm_90", "nvrtc")}  # target, builder
# Counts the Python functions of a repeated call; the C++ function that serves it is one more hop.
REPEATED = """
import sys, torch, scanops
from scanops.runtime import native
native.get(build=True)
x = torch.randn(8, 1024)
hops = 0
def profile(frame, event, _):
    global hops
    hops += event == "call" and frame.f_code.co_filename.startswith(sys.argv[1])
with scanops.emulate():
    for _ in range(4):
        scanops.cumsum(x, -1)
    sys.setprofile(profile)
    scanops.cumsum(x, -1)
    sys.setprofile(None)
print(hops + 1)
"""


@functools.cache
def first_call(call: str = PLAIN) -> tuple[frozenset[str], frozenset[str]]:
    """Return the functions and the files of this repository that run in a first call, the compiler stubbed."""
    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder, "stub.so")
        stub.with_name("stub.so.c").write_text(STUB, encoding="utf-8")
        ran = json.loads(_run(FIRST_CALL, folder, str(ROOT), str(stub), call))
    names = frozenset(f"{file}:{line} {name}" for file, name, line in ran)
    return names, frozenset(file for file, _, _ in ran)


def count_sharded_functions() -> int:
    """Return the number of functions of the package that run in a repeated call of a sharded scan."""
    with tempfile.TemporaryDirectory() as folder:
        return int(_run(SHARDED, folder, str(ROOT / "scanops"), f"{folder}/rendezvous"))


def times(repeats: int = 5) -> list[Figure]:
    """Return the figures of time: of the wheel in build/installed if there is one, else of the tree."""
    wheel = ROOT / "build" / "installed"
    path = str(wheel) if (wheel / "scanops").is_dir() else None
    note = "installed wheel" if path else "checkout, which renders; install a wheel with --target build/installed"

    def least(program: str, folder: str, *words: str) -> float:
        """What a machine that does other things as well delays least."""
        return round(min(float(_run(program, folder, *words, path=path)) for _ in range(repeats)), 2)

    with tempfile.TemporaryDirectory() as folder:
        _run(IMPORT, folder, path=path)  # writes the bytecode
        imported, loaded = least(IMPORT, folder), {}
        command = ["cc", "-x", "c", "-shared", "-fPIC", "-w", "-", "-o", f"{folder}/libcuda.so.1"]
        subprocess.run(command, input=DRIVER, text=True, check=True)
        for form, (target, builder) in FORMS.items():
            if form == "library" or not unavailable(builder, target):
                _run(BUILD, folder, target, builder, path=path)
                loaded[form] = least(FROM_DISK, folder, target)
        hops = int(_run(REPEATED, folder, str(ROOT / "scanops")))
    return [
        Figure("hops of a repeated call", hops),
        Figure("ms to import scanops after torch", imported, note=note),
        *(Figure(f"ms to look up and load a {form} in a new process", ms, note=note) for form, ms in loaded.items()),
    ]


def _run(program: str, store: str, *words: str, path: str | None = None) -> str:
    """Run a program in a new process with an empty store, and return what it prints."""
    own = {
        "SCANOPS_STORE": f"{store}/store",
        "SCANOPS_PACKS": "",
        "SCANOPS_TUNING": os.devnull,
        "SCANOPS_POLICY": "build",
        "LD_LIBRARY_PATH": f"{store}:{os.environ.get('LD_LIBRARY_PATH', '')}",  # of a driver that does nothing
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SCANOPS_")}
    if kept.pop("PYTHONDONTWRITEBYTECODE", None):  # such an environment would compile all modules in each process
        own["PYTHONPYCACHEPREFIX"] = _bytecode().name
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=store,
        env={**kept, **own, **({"PYTHONPATH": path} if path else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"a measured process failed\n{done.stderr}")
    return done.stdout


@functools.cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="scanops-bytecode-")  # removed when the process ends


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every figure with its note, or all of them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--structure", action="store_true", help="leave out what needs time or a C++ call path")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    parts: list[Callable[[], list[Figure]]] = [structure] if given.structure else [structure, times]
    figures = [figure for part in parts for figure in part()]
    if given.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    else:
        for figure in figures:
            print(f"{figure.name:52}{figure.value:>10,}  {figure.note}".rstrip())


if __name__ == "__main__":
    main()
