"""Level 1: what a template may read, and how it is written."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import jinja2
import pytest
from jinja2 import meta, nodes

from scanops.codegen.source import environment

DENSE = 0.35  # of the lines hold a directive: worth a second look
TOO_DENSE = 0.5  # this no longer reads as a page of CUDA

# Of kernels: what exports/ has is Python around one, and tests/exports reads what comes of it.
TEMPLATES = sorted(
    name for name in environment().list_templates() if name.endswith(".j2") and not name.startswith("exports/")
)
SKELETONS = [name for name in TEMPLATES if name.endswith(".cu.j2")]
STAGES = [name for name in TEMPLATES if name.endswith(".cuh.j2")]
FREE = {
    "banner.j2": {"plan", "digest"},
    "laws.j2": {"plan"},  # no kernel: what check_operator runs on a CPU
    **{name: {"plan"} for name in SKELETONS},
    **{name: set() for name in STAGES},
}


def source(name: str) -> str:
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


def parsed(name: str) -> nodes.Template:
    return environment().parse(source(name), name)


def test_every_template_is_a_skeleton_a_stage_the_banner_or_the_laws() -> None:
    assert set(TEMPLATES) == FREE.keys()


@pytest.mark.parametrize("name", TEMPLATES)
def test_free_variables(name: str) -> None:
    tree = parsed(name)
    imported = {node.target for node in tree.body if isinstance(node, nodes.Import)}  # seen in blocks, unlike by meta
    assert meta.find_undeclared_variables(tree) - imported <= FREE[name]


def test_an_undefined_name_is_an_error() -> None:
    assert environment().undefined is jinja2.StrictUndefined
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ nothing }}").render()


@pytest.mark.parametrize("name", TEMPLATES)
def test_macros_are_imported_without_context(name: str) -> None:
    tree = parsed(name)
    assert not list(tree.find_all(nodes.Include)), "an include sees the includer's names"
    assert not [found.lineno for found in tree.find_all(nodes.Import) if found.with_context]
    assert not list(tree.find_all(nodes.FromImport)), "an import under a name says where a macro is from"


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_macros_and_imports_alone(name: str) -> None:
    rest = [node for node in parsed(name).body if not isinstance(node, (nodes.Macro, nodes.Import, nodes.Output))]
    printed = [node for node in parsed(name).body if isinstance(node, nodes.Output)]
    assert not rest
    for node in printed:  # the line ends between macros
        assert all(isinstance(part, nodes.TemplateData) and not part.data.strip() for part in node.nodes)


@pytest.mark.parametrize("name", STAGES)
def test_a_macro_reads_its_arguments_and_imports_alone(name: str) -> None:
    tree = parsed(name)
    known = {node.target for node in tree.find_all(nodes.Import)} | {node.name for node in tree.find_all(nodes.Macro)}
    for macro in tree.find_all(nodes.Macro):
        alone = nodes.Template([macro], lineno=1)
        alone.set_environment(environment())
        assert meta.find_undeclared_variables(alone) <= known, f"{name}: {macro.name}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_compare_no_numbers(name: str) -> None:
    """Thresholds live in the planner: a template tests booleans, and compares names at most."""
    for comparison in parsed(name).find_all(nodes.Compare):
        operands = [comparison.expr, *(operand.expr for operand in comparison.ops)]
        signs = {operand.op for operand in comparison.ops}
        where = f"{name}:{comparison.lineno}"
        assert signs <= {"eq", "ne", "in", "notin"}, f"{where} orders two values"
        for operand in operands:
            assert not (isinstance(operand, nodes.Const) and not isinstance(operand.value, str)), where


@pytest.mark.parametrize("name", SKELETONS)
def test_directive_density(name: str, record_property: Callable[[str, object], None]) -> None:
    lines = source(name).splitlines()
    directives = sum("{%" in line for line in lines)
    density = directives / len(lines)
    record_property("density", round(density, 3))
    print(f"{name}: {directives} of {len(lines)} lines hold a directive, {density:.0%}")
    if density > DENSE:
        warnings.warn(f"{name}: {density:.0%} of the lines hold a directive, more than {DENSE:.0%}", stacklevel=1)
    assert density < TOO_DENSE


@pytest.mark.parametrize("name", [name for name in SKELETONS if name != "base.cu.j2"])
def test_blocks_are_those_of_the_base(name: str) -> None:
    """Jinja drops a block that the base does not have without a word."""
    tree, base = parsed(name), parsed("base.cu.j2")
    assert [node.template.as_const() for node in tree.find_all(nodes.Extends)] == ["base.cu.j2"]
    assert {block.name for block in tree.find_all(nodes.Block)} <= {block.name for block in base.find_all(nodes.Block)}


@pytest.mark.parametrize("name", SKELETONS)
def test_imports_are_used(name: str) -> None:
    imported = {node.target for node in parsed(name).find_all(nodes.Import)}
    assert imported == {target for target in imported if re.search(rf"\b{target}[.\[]", source(name))}


@pytest.mark.parametrize("name", TEMPLATES)
def test_lines_are_readable(name: str) -> None:
    assert not re.search(r"[ \t]+$", source(name), re.MULTILINE), "blanks at the end of a line"
    assert "\t" not in source(name)
