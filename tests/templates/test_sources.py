"""Level 1: what a template may read, and how it is written."""

from __future__ import annotations

import re

import jinja2
import pytest
from jinja2 import meta, nodes

from scanops.codegen.source import environment

DENSITY = 0.35  # lines with a directive; above it a skeleton stops reading as CUDA

TEMPLATES = sorted(name for name in environment().list_templates() if name.endswith(".j2"))
SKELETONS = [name for name in TEMPLATES if name.endswith(".cu.j2")]
STAGES = [name for name in TEMPLATES if name.endswith(".cuh.j2")]
FREE = {**dict.fromkeys(SKELETONS, {"plan"}), **dict.fromkeys(STAGES, set()), "banner.j2": {"plan", "digest"}}


def source(name: str) -> str:
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


def parsed(name: str) -> nodes.Template:
    return environment().parse(source(name), name)


def test_every_template_is_a_skeleton_a_stage_or_the_banner() -> None:
    assert set(TEMPLATES) == FREE.keys()


@pytest.mark.parametrize("name", TEMPLATES)
def test_free_variables(name: str) -> None:
    assert meta.find_undeclared_variables(parsed(name)) <= FREE[name]


def test_an_undefined_name_is_an_error() -> None:
    assert environment().undefined is jinja2.StrictUndefined
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ nothing }}").render()


@pytest.mark.parametrize("name", TEMPLATES)
def test_macros_are_imported_without_context(name: str) -> None:
    tree = parsed(name)
    assert not list(tree.find_all(nodes.Include)), "an include sees the includer's names"
    assert not [found.lineno for found in tree.find_all((nodes.Import, nodes.FromImport)) if found.with_context]


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
        alone = nodes.Template([macro], lineno=1).set_environment(environment())
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
def test_directive_density(name: str, record_property: pytest.RecordProperty) -> None:
    lines = source(name).splitlines()
    directives = sum("{%" in line for line in lines)
    density = directives / len(lines)
    record_property("density", round(density, 3))
    print(f"{name}: {directives} of {len(lines)} lines hold a directive, {density:.0%}")
    assert density < DENSITY


@pytest.mark.parametrize("name", TEMPLATES)
def test_lines_are_readable(name: str) -> None:
    assert not re.search(r"[ \t]+$", source(name), re.MULTILINE), "blanks at the end of a line"
    assert "\t" not in source(name)
