from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scanops import build_request, environment, files, processes
from scanops import builders as scanops_builders
from scanops.build_request import BuildReport, BuildRequest
from scanops.builders import nvrtc, toolchain
from scanops.errors import BadStoreEntry, BuildFailure, MissingCompiler, ScanopsError, UnsupportedRequest
from scanops.runtime.policies import AHEAD, POLICIES
from scanops.store.root import check_root, create_root
from tests.scripts import ran
from tests.store.sources import CUDA, needs_nvrtc, script

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
    places = ("usual", "on-path", "pathfinder", "cuda-home", "chosen")
    nvcc = {place: pip_toolkit(bare / place) for place in places}
    assert toolchain.find_nvcc().path == nvcc["usual"]
    monkeypatch.setenv("PATH", f"{nvcc['on-path'].parent}{os.pathsep}{bare / 'programs'}")
    assert toolchain.find_nvcc().path == nvcc["on-path"]
    monkeypatch.setattr(toolchain, "_pathfinder_nvcc", lambda: nvcc["pathfinder"])
    found, root = toolchain.find_nvcc(), bare / "pathfinder"
    assert (found.path, found.found_by, found.root, found.version) == (nvcc[root.name], "cuda-pathfinder", root, "13.0")
    assert found.targets == ("sm_80", "sm_87", "sm_90", "sm_120")
    assert found.runtime == root / "lib" / "libcudart.so.13"
    monkeypatch.setenv("CUDA_HOME", str(bare / "cuda-home"))
    assert toolchain.find_nvcc().found_by == "CUDA_HOME"
    monkeypatch.setenv("SCANOPS_NVCC", str(nvcc["chosen"]))
    assert toolchain.find_nvcc().root == bare / "chosen"


def test_a_wrapper_script_leads_to_the_root_of_the_real_one(bare: Path) -> None:
    real = pip_toolkit(bare / "real")
    wrapper = script(bare / "programs" / "nvcc", f'exec "{real}" "$@"')
    found = toolchain.find_nvcc()
    assert (found.path, found.root, found.version) == (wrapper, bare / "real", "13.0")


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


# ---- environment variables, what a process makes of its machine, and identities

PACKAGE = Path(environment.__file__).parent


def test_no_other_file_reads_the_environment() -> None:
    readers = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in ("os.environ", "getenv"))
    ]
    assert readers == [Path("environment.py")]


def test_every_variable_has_a_row_and_every_row_its_words() -> None:
    text = (PACKAGE / "environment.py").read_text(encoding="utf-8")
    named = set(re.findall(r'"((?:SCANOPS|CUDA)_[A-Z_]+)"', text))
    assert named == {row.name for row in environment.VARIABLES} | {"SCANOPS_PREBUILT"}  # which setup.py reads
    for row in environment.VARIABLES:
        assert text.count(f'"{row.name}"') >= 2, f"{row.name} is in the table and read nowhere"
        assert row.default and row.meaning and callable(row.read)


def test_values_are_read_at_call_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCANOPS_LOCK_SECONDS", raising=False)
    assert environment.lock_seconds() == 60.0
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "1.5")
    assert environment.lock_seconds() == 1.5
    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("SCANOPS_LOCK_SECONDS", text)
        with pytest.raises(UnsupportedRequest, match=f"read SCANOPS_LOCK_SECONDS: got '{text}'"):
            environment.lock_seconds()
    for text, value in (("", True), ("0", False), ("no", False), ("1", True), ("yes", True)):
        monkeypatch.setenv("SCANOPS_NATIVE", text)
        assert environment.native() is value


def test_an_overlay_is_taken_back_and_copies_are_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_ONE", "1")
    monkeypatch.delenv("SCANOPS_TWO", raising=False)
    with pytest.raises(KeyError), environment.overlaid({"SCANOPS_ONE": None, "SCANOPS_TWO": "2"}):
        assert "SCANOPS_ONE" not in os.environ
        assert os.environ["SCANOPS_TWO"] == "2"
        raise KeyError
    assert os.environ["SCANOPS_ONE"] == "1"
    assert "SCANOPS_TWO" not in os.environ

    def overlay() -> None:
        for _ in range(1000):
            with environment.overlaid({f"SCANOPS_{number}": "1" for number in range(50)}):
                pass

    def copy() -> None:
        assert all(environment.child(SCANOPS_TWO="2")["SCANOPS_TWO"] == "2" for _ in range(300))

    processes.at_once(lambda work: work(), (overlay, copy), 2)


PATHS = ("STORE", "PACKS", "TUNING", "REQUIRE_SIGNED", "RECORD", "NVCC", "NVRTC")


def test_a_user_without_a_home_has_a_store_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, as a container is run by a number."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", *(row.name for row in environment.VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    root = environment.store_root()
    assert root.is_absolute() and check_root(root) is False
    assert not any(path.exists() for path in environment.tuning_files())
    with pytest.raises(BadStoreEntry, match="this user has no home") as caught:
        create_root(root)
    assert "SCANOPS_STORE" in caught.value.hint
    reads = {row.name: row.read for row in environment.VARIABLES}
    for name in (*(f"SCANOPS_{name}" for name in PATHS), "CUDA_HOME"):
        monkeypatch.setenv(name, "~/somewhere")
        with pytest.raises(UnsupportedRequest, match=f"read {name}"):
            reads[name]()


WORD: ContextVar[str] = ContextVar("word", default="none")


@pytest.mark.parametrize(("limit", "jobs"), [(None, 6), ("max", 6), ("4000000000", 4), ("5", 1), ("9" * 18, 6)])
def test_jobs_fit_the_cores_and_the_memory_of_machine_and_container(
    limit: str | None, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n", encoding="ascii")
    monkeypatch.setattr(processes, "_LIMIT", tmp_path / "memory.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1_500_000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert (processes.jobs_that_fit(), processes.jobs_that_fit(1)) == (jobs, 1)


@pytest.mark.parametrize("at_a_time", [1, 3])
def test_results_keep_the_order_and_threads_the_context(at_a_time: int) -> None:
    def work(number: int) -> tuple[int, str, bool]:
        heard = WORD.get()
        WORD.set(f"of {number}")  # is seen by no other
        return number, heard, processes.SEVERAL.get()

    token = WORD.set("here")
    try:
        assert processes.at_once(work, range(7), at_a_time) == [(number, "here", True) for number in range(7)]
    finally:
        WORD.reset(token)
    assert processes.at_once(lambda item: processes.SEVERAL.get(), [0], at_a_time) == [False]
    assert processes.at_once(work, [], at_a_time) == [] and not processes.SEVERAL.get()


# ---- what identities follow from

PLAIN = BuildRequest(name="sum-f32", source="int x;", target="sm_90")
CPU = replace(PLAIN, target="cpu")


def test_what_an_identity_follows_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source, target, options, ABI and schema, but no name and no path."""
    changes = ({"source": "int y;"}, {"target": "sm_80"}, {"target": "sm_90a"}, {"target": "cpu"}, {"options": ("-g",)})
    seen = {PLAIN.identity, *(replace(PLAIN, **change).identity for change in changes)}
    for name, value in (("ABI", build_request.ABI + 1), ("SCHEMA", build_request.SCHEMA + 1), ("LINK_FLAGS", ())):
        with monkeypatch.context() as patch:
            patch.setattr(build_request, name, value)
            seen.add(replace(PLAIN).identity)
    assert len(seen) == 9 and {len(identity) for identity in seen} == {64}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", "another")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path))
    assert replace(PLAIN, name="another").identity == PLAIN.identity  # and from no name or path


def test_identity_for_the_cpu_follows_the_emulator_s_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = []
    for place, text in (("here", "// one"), ("there", "// one"), ("elsewhere", "// another")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "cuda_runtime.h").write_text(text)
        monkeypatch.setitem(build_request.FOLDERS, "emulator", tmp_path / place)
        identities.append(replace(CPU).identity)
        assert replace(PLAIN).identity == PLAIN.identity
    assert identities[0] == identities[1] != identities[2]


def test_the_digest_of_sources_follows_from_names_and_bytes_alone(tmp_path: Path) -> None:
    """No time, size or place counts, and no file that is no source."""
    digests = []
    for place, name, text in (("a", "x.py", "1"), ("b", "x.py", "1"), ("c", "x.py", "2"), ("d", "y.py", "1")):
        folder = tmp_path / place / "below"
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        os.utime(folder / name, (0, 0))
        (folder / f"{place}.pyc").write_text(place)
        digests.append(files.digest(tmp_path / place))
    assert digests[0] == digests[1] and len(set(digests)) == 3
    assert set(build_request.source_digests()) == set(files.TREES)


@pytest.mark.parametrize(
    "changes",
    [{"target": text} for text in ("", "sm_", "sm_9x", "compute_90", "gpu", "sm_90 -o x")]
    + [{"name": text} for text in ("", ".hidden", "../up", "a/b", "a b", "x" * 152)],
    ids=repr,
)
def test_targets_and_names_that_are_none(changes: dict[str, str]) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        replace(PLAIN, **changes)
    assert caught.value.value in map(repr, changes.values())


# ---- NVRTC: where it is found, what it builds without tools, and who is asked when it does not build

CALL = POLICIES["build"].builders
ALONE = """
import runpy, sys
def refuse(event, words):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec"):
        sys.exit(f"{event}: {words}")
sys.addaudithook(refuse)
sys.argv = ["scanops", "build", "sum-f32-n32768", "--target", "sm_90"]
runpy.run_module("scanops", run_name="__main__")
"""


@needs_nvrtc
def test_a_kernel_is_built_with_an_empty_path_and_no_process(tmp_path: Path) -> None:
    words = {"PATH": "", "SCANOPS_BUILDER": "nvrtc", "SCANOPS_STORE": str(tmp_path / "store")}
    said = ran(sys.executable, "-c", ALONE, **words).stdout
    assert said.count("  built  ") == said.count("kernel.cubin, by nvrtc") == said.count("no spills") == 2


def test_the_order_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of the process, the newest wheel, a toolkit; nothing older than CUDA 12, and nothing twice."""
    files = ("loaded/libnvrtc.so.12.4.127", "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "home/lib64/libnvrtc.so.13")
    for name in (*files, "site/nvidia/cu13/lib/libnvrtc.so.13", "home/lib64/libnvrtc.so.11.2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 0 00:00 1   {tmp_path / files[0]}\n" * 2 + "7f02-7f03 rw-p 0 00:00 0\n")
    monkeypatch.setattr(nvrtc, "_MAPS", maps)
    monkeypatch.setattr(nvrtc, "_USUAL_ROOT", tmp_path / "absent")
    monkeypatch.setattr(toolchain.site, "getsitepackages", lambda: [str(tmp_path / "site")])
    monkeypatch.setattr(toolchain.site, "ENABLE_USER_SITE", False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SCANOPS_NVRTC", raising=False)
    found = [(how, path.relative_to(tmp_path).parts[0], path.name) for how, path in nvrtc._places()]
    assert found == [
        ("this process", "loaded", "libnvrtc.so.12.4.127"),
        ("wheel", "site", "libnvrtc.so.13"),
        ("wheel", "site", "libnvrtc.so.12"),
        ("CUDA_HOME", "home", "libnvrtc.so.13"),
    ]
    with pytest.raises(MissingCompiler, match=r"libnvrtc\.so\.12\.4\.127") as caught:  # none of the files is a library
        nvrtc.require("sm_90")
    assert "pip install nvidia-cuda-nvrtc" in caught.value.hint


PLANTED = """
#include <cstdio>
#include <cstdlib>
__attribute__((constructor)) static void run() { if (FILE* file = fopen(getenv("PLANTED"), "w")) fclose(file); }
"""
SEARCH = """
from scanops.builders import nvrtc, toolchain
places = [str(path) for _, path in nvrtc._places()] + [str(path) for path in toolchain.runtimes("libcudart.so.13")]
print(*places, sep="\\n")
try:
    nvrtc.require("sm_90")
except nvrtc.MissingCompiler:
    pass
"""
WAYS: dict[str, tuple[str, ...]] = {
    "-m scanops doctor": ("-m", "scanops", "doctor"),
    "-m scanops build": ("-m", "scanops", "build", "sum-f32-n8", "--target", "sm_90", "--builder", "nvrtc"),
    "-m of a module": ("-m", "search"),
    "a script": ("search.py",),
    "-c": ("-c", SEARCH),
    "-c in another folder": ("-c", f"import os; os.chdir('below')\n{SEARCH}"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libraries that are called as NVIDIA's, as another user may leave one for people to work in."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.cpp").write_text(PLANTED)
    ran("g++", "-shared", "-fPIC", "planted.cpp", "-o", "planted.so", folder=folder)
    for place in ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "libnvrtc.so.13"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes((folder / "planted.so").read_bytes())
    for name in ("cu13/lib/libnvrtc-builtins.so.13.0", "cu13/lib/libcudart.so.13"):
        (folder / "nvidia" / name).write_bytes((folder / "planted.so").read_bytes())
    (folder / "nvidia_cuda_nvrtc-99.dist-info").mkdir()
    facts = "Metadata-Version: 2.1\nName: nvidia-cuda-nvrtc\nVersion: 99\n"
    (folder / "nvidia_cuda_nvrtc-99.dist-info" / "METADATA").write_text(facts)
    (folder / "nvidia_cuda_nvrtc-99.dist-info" / "RECORD").write_text("nvidia/cu13/lib/libnvrtc.so.13,,\n")
    (folder / "search.py").write_text(SEARCH)
    (folder / "below").mkdir()
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_no_library_of_the_current_folder_is_loaded(way: str, planted: Path, tmp_path: Path) -> None:
    """Nor one of the folder of a script, or of the folder in which Python was started."""
    mark, root = tmp_path / "ran", str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PLANTED": str(mark), "SCANOPS_STORE": str(tmp_path / "store")}
    paths = os.pathsep.join((root, "", ".", str(planted))) if way.endswith("doctor") else root
    done = subprocess.run(
        [sys.executable, *WAYS[way]],
        cwd=planted,
        env={**environment, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert not mark.exists(), done.stdout
    assert str(planted) not in done.stdout.replace(f"PYTHONPATH={paths}", ""), done.stdout
    ran(sys.executable, "-c", "import ctypes; ctypes.CDLL('./planted.so')", folder=planted, PLANTED=str(mark))
    assert mark.exists()  # what loading one would have done


NAMED = """
import os, sys
from scanops.builders import nvrtc
from scanops.errors import ScanopsError
for path, target in zip(sys.argv[1::2], sys.argv[2::2]):
    os.environ["SCANOPS_NVRTC"] = path
    try:
        print(nvrtc.require(target).found_by)
    except ScanopsError as problem:
        print(type(problem).__name__, problem.value, problem.hint)
"""


@needs_nvrtc
def test_a_named_library_is_used_and_no_other(tmp_path: Path) -> None:
    """In a process that has loaded none: where its builtins are loaded, a library does without a copy beside it."""
    real, bare = nvrtc.require("sm_90").path, tmp_path / "libnvrtc.so.13"
    os.link(real, bare) if real.stat().st_dev == tmp_path.stat().st_dev else bare.write_bytes(real.read_bytes())
    pairs = ((bare, "sm_90"), ("/nowhere", "sm_90"), (sys.executable, "sm_90"), (real, "sm_90"), (real, "sm_20"))
    lines = ran(sys.executable, "-c", NAMED, *(word for pair in pairs for word in pair)).stdout.splitlines()
    kinds = ("MissingCompiler", "MissingCompiler", "MissingCompiler", "SCANOPS_NVRTC", "UnsupportedRequest")
    words = ("libnvrtc-builtins.so", "No such file", "correct SCANOPS_NVRTC", "", "set SCANOPS_NVRTC")
    assert all(line.startswith(kind) and word in line for line, kind, word in zip(lines, kinds, words, strict=True))


REFUSED = BuildFailure("build", allowed="", value="refused", hint="")
ABSENT = MissingCompiler("find it", allowed="", value="absent", hint="")
UNKNOWN = UnsupportedRequest("target", allowed="", value="unknown", hint="")
# Who may build, what each says, who is asked, and what comes of it: a builder, or an error that names these
ORDERS: dict[str, tuple[tuple[str, ...], dict[str, ScanopsError], list[str], str]] = {
    "ahead of time": (AHEAD, {}, ["load_inline"], "load_inline"),
    "a torch without CUDA": (AHEAD, {"load_inline": ABSENT}, ["load_inline", "nvcc"], "nvcc"),
    "torch alone": (AHEAD, dict.fromkeys(AHEAD[:2], ABSENT), list(AHEAD), "nvrtc"),
    "a host compiler that nvcc refuses": (AHEAD, {"load_inline": REFUSED}, ["load_inline", "nvrtc"], "nvrtc"),
    "a call": (CALL, {}, ["nvrtc"], "nvrtc"),
    "a call without NVRTC": (CALL, {"nvrtc": ABSENT}, ["nvrtc", "load_inline"], "load_inline"),
    "names that NVRTC lacks": (CALL, {"nvrtc": REFUSED}, ["nvrtc", "load_inline"], "load_inline"),
    "a target that NVRTC lacks": (CALL, {"nvrtc": UNKNOWN, "load_inline": ABSENT}, list(CALL), "nvcc"),
    "a mistake": (CALL, {"nvrtc": UNKNOWN, "load_inline": REFUSED}, ["nvrtc", "load_inline"], "refused"),
    "a mistake, and NVRTC alone": (CALL, {"nvrtc": REFUSED, **dict.fromkeys(AHEAD[:2], ABSENT)}, list(CALL), "refused"),
    "nobody": (CALL, dict.fromkeys(CALL, ABSENT), list(CALL), "absent"),
    "one that is named": (("nvcc",), {"nvcc": ABSENT}, ["nvcc"], "absent"),
}


@pytest.mark.parametrize("what", ORDERS)
def test_who_is_asked(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders, problems, order, outcome = ORDERS[what]
    asked: list[str] = []

    def built(name: str) -> BuildReport:
        asked.append(name)
        if name in problems:
            raise problems[name]
        return BuildReport(file=tmp_path / "kernel", seconds=0, resources=None, toolchain={"route": name})

    for name in AHEAD:
        stub = SimpleNamespace(require=id, build=lambda request, directory, name=name: built(name))
        monkeypatch.setitem(scanops_builders._BUILDERS, name, stub)
    request = replace(CUDA, builders=builders)
    if outcome in AHEAD:
        assert scanops_builders.build(request, tmp_path).toolchain == {"route": outcome}
    else:
        with pytest.raises(ScanopsError, match=outcome) as caught:
            scanops_builders.build(request, tmp_path)
        assert isinstance(caught.value, MissingCompiler) is (outcome == "absent")
    assert asked == order
