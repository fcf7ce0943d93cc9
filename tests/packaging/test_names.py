"""Names: no two classes, aliases or modules of the package and its generator share one."""

from __future__ import annotations

import ast
import re

from tests.scripts import ROOT

# Names that are left to change: they only become fewer.
REPEATED = {
    "classes": {"Layout"},
    "aliases": {"Function", "Outputs", "Scan", "States", "Tensors"},
    "modules": {"fused"},
}
_CONSTANT = re.compile(
    r"^(?:    (?=static))?(?:static |inline )*constexpr [^({=;]*?\b(\w+)(?:\[\w*\])?\s*(?:=|\{)", re.MULTILINE
)


def test_no_two_classes_aliases_or_modules_share_a_name() -> None:
    found: dict[str, dict[str, list[str]]] = {"classes": {}, "aliases": {}, "modules": {}}
    for path in (*(ROOT / "scanops").rglob("*.py"), *(ROOT / "codegen").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if path.stem not in ("__init__", "__main__"):
            found["modules"].setdefault(path.stem, []).append(name)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found["classes"].setdefault(node.name, []).append(name)
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and re.match("[A-Z][a-z]", target.id):
                found["aliases"].setdefault(target.id, []).append(name)
    for name in found["classes"].keys() & found["aliases"].keys():
        found["classes"][name] += found["aliases"].pop(name)
    repeated = {
        kind: {name: at for name, at in names.items() if len(at) > 1 and name not in REPEATED[kind]}
        for kind, names in found.items()
    }
    assert repeated == {kind: {} for kind in REPEATED}


def lower_case_constants(text: str) -> list[str]:
    """Return the constants of a kernel, at file scope or of a class, that are not called ``kLikeThis``.

    A ``constexpr`` variable of a function is a value like its others.
    """
    return [name for name in _CONSTANT.findall(text) if not re.match("k[A-Z]", name)]


def test_constants_of_kernels_are_not_in_lower_case() -> None:
    kernels = list((ROOT / "generated").glob("*.cu"))
    assert len(kernels) >= 8
    found = {path.name: lower_case_constants(path.read_text(encoding="utf-8")) for path in kernels}
    assert {name: names for name, names in found.items() if names} == {}


def test_which_constants_are_found() -> None:
    text = """
constexpr int kRight = 1, tile = 2;
static constexpr unsigned long long wrong = 1ull;
struct A {
    static constexpr int kFine = 2;
    static constexpr bool is_flat = true;
};
constexpr int place_of(int k) { return k; }
inline constexpr float list[] = {1};
void f() {
    constexpr int rows = kRight;
    if constexpr (kRight == 1) return;
}
"""
    assert lower_case_constants(text) == ["wrong", "is_flat", "list"]
