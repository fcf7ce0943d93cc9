"""Layers: no module and no package imports itself through others, and the generator imports nothing of scanops.

Counted are all imports: lazy ones and those for type annotations too.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import scanops
import scanops.codegen
from tests.scripts import ROOT, ran

TREES = {"scanops": Path(scanops.__path__[0]), "scanops.codegen": Path(scanops.codegen.__path__[0])}
GENERATOR = "scanops.codegen"


def modules() -> dict[str, Path]:
    """Return every module of both trees by name; in a wheel the tree of the generator is a folder of the other one."""
    found = {}
    for tree, root in TREES.items():
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join((tree, *parts[: len(parts) - (parts[-1] == "__init__")]))] = path
    return found


def imported(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """Return the modules that ``name`` imports, with the packages that enclose them: their code runs first."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in known else node.module for each in inner}
        # However it is imported, late or looked up in sys.modules: somewhere stands its name.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.add(node.value)
    for target in tuple(found):
        around = target.split(".")
        packages = {".".join(around[:end]) for end in range(2, len(around))}
        found |= {package for package in packages if not name.startswith(package)}
    return found & set(known) - {name}


def package_of(module: str) -> str:
    """Return ``scanops.store`` for ``scanops.store.library``; a module directly in a tree stands for itself."""
    depth = 3 if module.startswith(f"{GENERATOR}.") else 2
    return ".".join(module.split(".")[:depth])


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the names along a cycle of imports, the first once more at its end; an empty list if there is none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])[::-1]
    return []


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    known = modules()
    return {name: imported(name, path, known) for name, path in known.items()}


def packages_of(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    graph: dict[str, set[str]] = {}
    for name, others in imports.items():
        graph.setdefault(package_of(name), set()).update({package_of(other) for other in others} - {package_of(name)})
    return graph


def test_no_module_imports_itself_through_others() -> None:
    assert {"scanops", "scanops.api", "scanops.codegen.planner", "scanops.codegen.fusion.graph"} <= set(all_imports())
    assert cycle_in(all_imports()) == []


def test_no_package_imports_itself_through_others() -> None:
    graph = packages_of(all_imports())
    assert {"scanops.ops", "scanops.store", "scanops.codegen.strategies", "scanops.codegen.fusion"} <= set(graph)
    assert cycle_in(graph) == []


def test_modules_are_imported_by_names_that_can_be_read() -> None:
    """Names that are put together would hide an import from these tests; only the package itself loads its names so."""
    unclear = set()
    for name, path in modules().items():
        text = ast.parse(path.read_text(encoding="utf-8"))
        named = {node.targets[0].id for node in text.body if isinstance(node, ast.Assign) and named_text(node)}
        for node in ast.walk(text):
            function = node.func if isinstance(node, ast.Call) else None
            word = getattr(function, "id", getattr(function, "attr", ""))
            if isinstance(node, ast.Call) and word in ("import_late", "load_late", "import_module", "__import__"):
                given = node.args[0]
                if not isinstance(given, ast.Constant) and getattr(given, "id", "") not in named:
                    unclear.add(name)
    assert unclear == {"scanops", "scanops.forks"}


def named_text(node: ast.Assign) -> bool:
    """Whether a name of a module stands for a text."""
    return isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)


def test_a_cycle_is_found() -> None:
    """One more import, from the generator to the package that renders by it, is a cycle of packages and is named."""
    cycle = cycle_in(packages_of({**all_imports(), "scanops.codegen.source": {"scanops.build_request"}}))
    assert cycle[0] == cycle[-1] and {"scanops.build_request", "scanops.codegen.source"} <= set(cycle)


def test_the_generator_imports_errors_and_itself() -> None:
    outside = {
        (name, other)
        for name, others in all_imports().items()
        if name.startswith(GENERATOR)
        for other in others
        if not other.startswith(GENERATOR)
    }
    assert {other for _, other in outside} == {"scanops.errors"}, sorted(outside)


ALONE = """
import importlib, pkgutil, sys
from pathlib import Path

ROOTS = ("scanops.codegen", "scanops.templates")
MODULES = ("scanops", "scanops._version", "scanops.forks", "scanops.errors")  # scanops imports two

class Refusing:
    def find_spec(self, name, path=None, target=None):
        inside = name in MODULES or name in ROOTS or name.startswith(tuple(root + "." for root in ROOTS))
        if name.partition(".")[0] in ("torch", "scanops") and not inside:
            raise ImportError(f"the generator imports {name}")

sys.meta_path.insert(0, Refusing())
import scanops.codegen
for module in pkgutil.walk_packages(scanops.codegen.__path__, "scanops.codegen."):
    importlib.import_module(module.name)

from scanops.codegen.fusion.fusion import Fusion, Operand, Output
from scanops.codegen.fusion.graph import Graph
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from tools.golden import golden_files

generated = Path(sys.argv[1])
rendered = golden_files()
stale = [name for name, text in rendered.items() if (generated / name).read_bytes() != text.encode()]
graph = Graph()
product = graph.operand(0, "float32") * graph.operand(1, "float32")
result = graph.add("result", "float32", 0)
operands = (Operand("float32"), Operand("float32"))
fused = Fusion(tuple(graph.nodes), operands, (product.at,), "float32", (Output(result.at, "float32"),))
text = generate(ScanSpec(op="sum", dtype="float32", out_dtype="float32", length=1000, map=fused.text))
print(len(rendered), stale, "State mapped(" in text, "torch" in sys.modules)
"""


def test_the_generator_renders_where_nothing_else_can_be_imported() -> None:
    """Every module of it is imported, every kernel of ``generated/`` is rendered, and so is a fused one."""
    files = len(list((ROOT / "generated").iterdir()))
    assert ran(sys.executable, "-c", ALONE, ROOT / "generated", folder=ROOT).stdout == f"{files} [] True False\n"
