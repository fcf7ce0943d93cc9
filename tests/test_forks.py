"""Forks beside threads that import, trace, build and launch: no child waits for a lock that it inherited."""

from __future__ import annotations

import ast
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import scanops
from scanops import forks
from tests.store.sources import python

PACKAGE = Path(scanops.__file__).parent
FOLDERS = (PACKAGE, Path(__file__).parents[1] / "codegen")
# Forks beside first calls. 220, in ten processes, take some three minutes: SCANOPS_TEST_FORKS=220 pytest -k first_calls
FORKS, FORKS_OF_A_PROCESS = int(os.environ.get("SCANOPS_TEST_FORKS", "22")), 22
CALLS = """
import sys
from tests.first_calls import check_imports, fork_beside_calls
check_imports() if len(sys.argv) == 1 else fork_beside_calls(int(sys.argv[1]), int(sys.argv[2]))
"""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield the name and the tree of each module."""
    for folder in FOLDERS:
        for path in folder.rglob("*.py"):
            name = f"{folder.name}/{path.relative_to(folder)}"
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def late_imports(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of imports in functions, and of calls that import."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield node.lineno
                if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                    "import_module",
                    "__import__",
                ):
                    yield node.lineno


def without_strings(tree: ast.Module) -> ast.Module:
    """Return the tree with empty strings, docstrings among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return tree


def test_late_imports_are_found() -> None:
    text = "import a\ndef f():\n    import b\n    from c import d\n    x.import_module('e')\n    import_late('g')\n"
    assert sorted(late_imports(ast.parse(text))) == [3, 4, 5]


def test_imports_in_functions_are_import_late() -> None:
    found = [(name, line) for name, tree in sources() for line in late_imports(tree)]
    assert [name for name, _ in found] == ["scanops/forks.py"]


def test_locks_of_threads_and_fork_handlers_are_in_one_module() -> None:
    """A lock elsewhere is made anew in a child, held inside delay_forks(), or of process groups, which no child has."""
    locks = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
    calls = [
        (name, ast.unparse(node.func))
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert {name for name, function in calls if function == "os.register_at_fork"} == {"scanops/forks.py"}
    used = {name for name, function in calls if function in {f"threading.{lock}" for lock in locks}}
    assert used == {
        "scanops/forks.py",
        "scanops/processes.py",
        "scanops/builders/inline.py",
        "scanops/distributed/call_order.py",
        "scanops/distributed/groups.py",
    }
    # cached_property has a lock until Python 3.12; scanops.codegen.lazy has none.
    texts = {name: ast.unparse(without_strings(tree)) for name, tree in sources()}
    assert [name for name, text in texts.items() if re.search(r"\bcached_property\b", text)] == []


def test_first_calls_import_only_while_forks_wait() -> None:
    """Of all modules that first calls import, those of torch, jinja2 and Python itself included."""
    process = python(CALLS, begin="", OMP_NUM_THREADS="1")
    out, error = process.communicate(timeout=240)
    assert (process.returncode, out) == (0, ""), error


@pytest.mark.parametrize("seed", range(max(1, FORKS // FORKS_OF_A_PROCESS)))
def test_forks_beside_first_calls(seed: int) -> None:
    """Each child makes a first call, too, and checks its result: emulated, fused, NVRTC, lazy names and others."""
    process = python(CALLS, FORKS_OF_A_PROCESS, seed, begin="", OMP_NUM_THREADS="1")
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, out + error


# ---- the module by itself


def fork() -> int:
    """Fork a child that ends at once with 0 if it has FORK_LOCK and nothing delays a fork of its own."""
    child = os.fork()
    if child == 0:
        free = forks.FORK_LOCK.acquire(timeout=10) and not forks._DELAYING and not forks._FORKING
        os._exit(0 if free else 1)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("guard", [lambda: forks.FORK_LOCK, forks.delay_forks], ids=["lock", "delay"])
def test_a_fork_waits_for_other_threads(guard: object) -> None:
    entered, ended = threading.Event(), []

    def hold() -> None:
        with guard():  # type: ignore[operator]
            entered.set()
            time.sleep(0.3)
            ended.append(True)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    assert fork() == 0 and ended == [True]
    thread.join()


def test_what_delays_forks_may_use_the_lock_while_a_fork_waits() -> None:
    """Two threads delay a fork, one after the other waits for it; each needs FORK_LOCK to end, and enters again."""
    entered, waiting, log = threading.Barrier(3), threading.Event(), []

    def hold(name: str) -> None:
        with forks.delay_forks():
            entered.wait()
            waiting.wait()
            time.sleep(0.1)  # the main thread waits in os.fork
            with forks.delay_forks(), forks.FORK_LOCK:
                log.append(name)

    threads = [threading.Thread(target=hold, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    entered.wait()
    waiting.set()
    assert fork() == 0 and sorted(log) == ["a", "b"]
    for thread in threads:
        thread.join()


def test_a_fork_that_waits_is_not_overtaken() -> None:
    """New compiles begin after the fork, or a fork beside threads that compile all the time would never come."""
    ending, count = threading.Event(), []

    def compile_on() -> None:
        while not ending.is_set():
            with forks.delay_forks():
                count.append(1)
                time.sleep(0.02)

    threads = [threading.Thread(target=compile_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    assert [fork() for _ in range(5)] == [0] * 5
    took = time.monotonic() - began
    ending.set()
    for thread in threads:
        thread.join()
    assert took < 20 and len(count) > 4


def test_a_thread_may_fork_inside_what_it_holds_itself() -> None:
    with forks.delay_forks():
        child = os.fork()
        if child == 0:
            os._exit(0 if [threading.get_ident()] == forks._DELAYING else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert forks._DELAYING == []


def test_children_are_reset_in_order_whatever_one_reset_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(forks, "_RESETS", [])

    @forks.reset_in_child
    def first() -> None:
        done.append("first")
        raise ValueError

    forks.reset_in_child(lambda: done.append("second"))
    child = os.fork()
    if child == 0:
        os._exit(0 if done == ["first", "second"] else 1)
    assert os.waitpid(child, 0)[1] == 0 and done == []


def test_import_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold FORK_LOCK during the import, return the same module again, and raise what the import raises."""
    (tmp_path / "imported_late.py").write_text("from scanops import forks\nheld = forks.FORK_LOCK._is_owned()\n")
    (tmp_path / "imported_in_vain.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert forks.import_late("imported_late").held is True
    assert forks.import_late("imported_late") is forks.import_late("imported_late")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        forks.import_late("imported_in_vain")
    assert forks.import_late("scanops.forks") is forks
