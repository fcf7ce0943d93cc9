"""Settings that every test shares: GPU tests, hypothesis, and a store that is not the user's."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.scripts import ROOT, Forked, forks

# Derandomised, so that a failure repeats; a deadline would make a busy machine fail.
# `pytest --hypothesis-profile=explore` searches with fresh randomness.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("ci")

# What --one-case leaves out: tests that start processes which import torch, or compile for seconds.
SLOW = (
    *("builders/test_build.py", "cli/test_precompile.py", "examples/"),
    *("distributed/test_sharded.py::test_processes", "distributed/test_sharded.py::test_random_calls"),
    *("exports/test_values.py", "native/"),
    *("numbers/test_check_operator.py", "requests/test_fused.py::test_random_expressions"),
    *("packaging/test_wheel.py", "policy/test_background.py"),
    *("policy/test_record.py", "requests/test_allocations.py::test_nothing_beside_the_operands_is_read"),
    *("store/test_concurrency.py", "templates/test_golden.py"),
    *("test_forks.py::test_first_calls", "test_forks.py::test_forks_beside"),
    *("test_prose.py::test_examples", "test_readme.py", "torch_integration/"),
    *("tuning/test_plans.py", "tuning/test_tuning.py"),
)

KEPT_STORES = 3  # of the sources that were tested last
_own_store = pytest.StashKey[Path]()
_there_before = pytest.StashKey[int]()  # kernels in the store


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --one-case, which `make test-fast` uses, and --requests."""
    parser.addoption("--one-case", action="store_true", help="the first case of each test that is not slow")
    parser.addoption("--requests", type=int, default=1, help="random requests of each test of test_paths_agree.py")


class Failures:
    """Name each failure, and its error, the moment it happens: pytest shows them after the last test."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a line for a report that failed, of this process or of a worker."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            error = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
            first, _, _ = error.partition("\n")
            terminal.write(f"\nFAILED {report.nodeid}: {first}\n", flush=True, red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Point SCANOPS_STORE at a directory of the tests, before xdist starts the workers that inherit it."""
    os.fsync = lambda _: None  # no test outlives a power cut, and thousands of kernels would wait for the disk
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a shell; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of hundreds of processes would compile all modules again
    config.pluginmanager.register(Failures(config))
    if getattr(config.option, "numprocesses", None):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers have a core each: torch's threads would share them
    os.environ["SCANOPS_TUNING"] = os.devnull  # what somebody measured is no business of the tests
    # Inductor's code runs once here: to try vector instructions, and to start a pool of compilers, takes longer.
    os.environ |= {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    cache = getattr(config, "cache", None)
    # Kept from run to run, so that a repeated run compiles nothing: an entry's name is the digest of what it was built
    # from, so it cannot be stale. `pytest --cache-clear` and `make clean` remove it.
    root = kept_store() if os.environ.get("CI") else None if cache is None else cache.mkdir("scanops-store")
    if root is None:
        root = config.stash[_own_store] = Path(tempfile.mkdtemp(prefix="scanops-tests-"))
    root.chmod(0o700)
    os.environ["SCANOPS_STORE"] = str(root)
    config.stash[_there_before] = count_kernels()


def count_kernels() -> int:
    """Return how many kernels the store of the tests has."""
    return sum(1 for _ in Path(os.environ["SCANOPS_STORE"]).glob("*/manifest.json"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many kernels the run has built, each of which takes a compiler a tenth of a second."""
    there = count_kernels()
    terminalreporter.write_line(f"{there - config.stash[_there_before]} kernels built, {there} in the store")


def kept_store() -> Path | None:
    """Return the store of continuous integration for the sources that kernels follow from, where the machine keeps one.

    A checkout is new for each run; the store is in the user's cache, and those of other sources are removed from it.
    """
    digest = hashlib.sha256()
    for tree in (ROOT / "codegen", ROOT / "templates", ROOT / "scanops" / "emulator"):
        for path in sorted(path for path in tree.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    stores = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scanops-tests"
    root = stores / digest.hexdigest()[:16]
    try:
        root.mkdir(parents=True, exist_ok=True)
        os.utime(root)
        for other in sorted(stores.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_STORES]:
            shutil.rmtree(other, ignore_errors=True)
    except OSError:
        return None
    return root


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of a test's tensors, where kernels run; on "cpu" they are emulated, threads in a shuffled order."""
    import scanops  # here, because tests of its import begin without it

    with scanops.emulate(seed=7) if request.param == "emulated" else contextlib.nullcontext():
        yield "cuda" if request.param == "gpu" else "cpu"


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Run programs in a new process, as ``scripts.forks`` says."""
    with forks() as run:
        yield run


@pytest.fixture
def store(tmp_path: Path) -> object:
    """An empty store that is not the user's."""
    from scanops.store import Store

    return Store(tmp_path / "store")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, on a machine with no variable set, no compiler, no program on PATH, no home, and a store to be made."""
    from scanops import environment
    from scanops.builders import nvrtc, toolchain

    for row in environment.VARIABLES:
        monkeypatch.delenv(row.name, raising=False)
    (tmp_path / "file").touch()
    for name, place in {"HOME": "file/home", "PATH": "programs", "SCANOPS_STORE": "absent"}.items():
        monkeypatch.setenv(name, str(tmp_path / place))
    (tmp_path / "programs").mkdir()
    for name in ("_pathfinder_nvcc", "_find_packaged_ninja"):
        monkeypatch.setattr(toolchain, name, lambda: None)
    monkeypatch.setattr(toolchain, "_USUAL_ROOT", tmp_path / "usual")
    monkeypatch.setattr(nvrtc, "_places", tuple)
    return tmp_path


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the store of this run, if it is of this run alone."""
    if root := config.stash.get(_own_store, None):
        shutil.rmtree(root, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests marked ``gpu`` on a machine without a GPU, and all but one case with --one-case."""
    left_out: set[pytest.Item] = set()
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy:
        import torch  # here, because most selections of tests do without it

        if not torch.cuda.is_available():
            left_out |= set(needy)
        # The longest first, so that none is begun when the others end.
        items.sort(key=lambda item: not all(item.get_closest_marker(mark) for mark in ("gpu", "slow")))
    if config.getoption("--one-case"):
        seen: set[str] = set()
        for item in items:
            name = item.nodeid.partition("[")[0]
            slow = item.get_closest_marker("slow") or name.removeprefix("tests/").startswith(SLOW)
            if slow or name in seen:
                left_out.add(item)
            elif item not in left_out:
                seen.add(name)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Wait for the kernels of a test: a fault of one fails this test alone, as xdist begins another worker.

    Without a GPU, let Python serve the calls of the next test: what prepares kernels for a GPU loads the C++ call path,
    which then serves emulated kernels, too.
    """
    native = sys.modules.get("scanops.runtime.native")
    if native is not None and not item.get_closest_marker("gpu"):
        native.serve = None  # type: ignore[attr-defined]
    if item.get_closest_marker("gpu"):
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError:  # no call of CUDA works in this process any more
            if "PYTEST_XDIST_WORKER" in os.environ:
                os._exit(1)
            raise


def pytest_collection_finish() -> None:
    """Keep what was collected out of later garbage collections, which would walk it again and again."""
    gc.collect()
    gc.freeze()
