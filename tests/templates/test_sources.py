"""The sources of templates: what each may read, how macros are imported, what templates may compare."""

from __future__ import annotations

import re

import jinja2
import pytest
from jinja2 import meta, nodes

from scanops.codegen.source import environment

TOO_DENSE = 0.5  # fraction of lines that hold a directive: beyond it a template no longer reads as CUDA

# Templates of kernels; exports/ are Python, which tests/exports covers.
TEMPLATES = sorted(
    name for name in environment().list_templates() if name.endswith(".j2") and not name.startswith("exports/")
)
SKELETONS = [name for name in TEMPLATES if name.endswith(".cu.j2")]
STAGES = [name for name in TEMPLATES if name.endswith(".cuh.j2")]
FREE = {"banner.j2": {"plan", "digest"}, "laws.j2": {"plan"}, **{name: {"plan"} for name in SKELETONS}}
FREE["base.cu.j2"] = {"plan", "takes_stream"}  # an exported file may launch on the default stream


def source(name: str) -> str:
    """The text of a template."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


def parsed(name: str) -> nodes.Template:
    """The syntax tree of a template."""
    return environment().parse(source(name), name)


def test_an_undefined_name_is_an_error() -> None:
    """Jinja would render it as nothing."""
    assert environment().undefined is jinja2.StrictUndefined
    assert set(TEMPLATES) == FREE.keys() | set(STAGES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_reads_its_plan_and_imports_alone(name: str) -> None:
    """No other free variables, no includes, no imports with context, no unused import, no trailing blanks."""
    tree, text = parsed(name), source(name)
    imported = {node.target for node in tree.find_all(nodes.Import)}
    top = {node.target for node in tree.body if isinstance(node, nodes.Import)}
    assert meta.find_undeclared_variables(tree) - top <= FREE.get(name, set())
    assert not list(tree.find_all(nodes.Include)), "an include sees the includer's names"
    assert not [found.lineno for found in tree.find_all(nodes.Import) if found.with_context]
    assert not list(tree.find_all(nodes.FromImport)), "an import under a name says where a macro is from"
    assert imported == {target for target in imported if re.search(rf"\b{target}[.\[]", text)}
    assert not re.search(r"[ \t]+$|\t", text, re.MULTILINE)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_macros_of_their_arguments(name: str) -> None:
    """Nothing else at its top level, and a macro reads its arguments, other macros and imports alone."""
    tree = parsed(name)
    rest = [node for node in tree.body if not isinstance(node, (nodes.Macro, nodes.Import, nodes.Output))]
    printed = [part for node in tree.body if isinstance(node, nodes.Output) for part in node.nodes]
    assert not rest
    assert all(isinstance(part, nodes.TemplateData) and not part.data.strip() for part in printed)
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
        where = f"{name}:{comparison.lineno}"
        assert {operand.op for operand in comparison.ops} <= {"eq", "ne", "in", "notin"}, f"{where} orders two values"
        for operand in operands:
            assert not (isinstance(operand, nodes.Const) and not isinstance(operand.value, str)), where


@pytest.mark.parametrize("name", SKELETONS)
def test_a_skeleton_reads_as_cuda(name: str) -> None:
    """Few directives; and no block that the base lacks, which Jinja would drop without a word."""
    lines, tree, base = source(name).splitlines(), parsed(name), parsed("base.cu.j2")
    assert sum("{%" in line for line in lines) < TOO_DENSE * len(lines)
    if name != "base.cu.j2":
        assert [node.template.as_const() for node in tree.find_all(nodes.Extends)] == ["base.cu.j2"]
    assert {block.name for block in tree.find_all(nodes.Block)} <= {block.name for block in base.find_all(nodes.Block)}
