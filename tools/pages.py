"""Render the pages of ``docs/`` that follow from tables and results: ``python -m tools.pages [--check]``.

The description of an operator comes from its row of the table, the example from the recurrence of the row, and the page
on adding an operator from the text that adding it gives. Needs neither torch nor a compiler.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from scanops.codegen.dtypes import DTYPES, default_result, dtype_named
from scanops.codegen.operators import FAMILIES, OPERATORS, Operator, bits
from scanops.codegen.planner import make_plan
from scanops.codegen.source import render
from tools.committed import run
from tools.performance import performance_files

__all__ = ["EXAMPLES", "docs_files", "main"]

COMMAND = "python -m tools.pages"
EXAMPLES = {  # in docs/examples, with their titles
    "fields": "Filters, matrices, quaternions, the last valid value, a running argmax",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Operators that one page is about: those of a module of codegen/operators, whose docstring is its text."""

    title: str
    rows: tuple[Operator, ...]
    rules: str  # what NaN, ties, overflow and a masked element do
    source: str  # of the method
    example: tuple[float, ...]  # elements


# The operator that the page on adding one adds: this text is put into the table, evaluated, and rendered.
ADDED = """    Operator(
        name="bitwise_xnor",
        formula="y[i] = ~(~(x[0] ^ x[1]) ^ ...)",
        lift=("x",),
        combine=("~(older ^ newer)",),
        identity=("~0",),
        kinds=("int",),
        gives="kept",
        commutative=True,
        start="ones",
        step=lambda h, x: ~(h ^ x),
    ),
"""
MODULE = "codegen/operators/bits.py"
GATE = 0.5  # of examples
EXAMPLE_DTYPES = {"float": "float32", "int": "int32", "complex": "complex64"}  # of an operator of these kinds
ADDED_SPEC = "i32-n4"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages of ``docs/`` and return the exit status."""

    def render(directory: Path) -> Mapping[str, str]:
        return docs_files({name: (directory / f"examples/{name}.py").read_text(encoding="utf-8") for name in EXAMPLES})

    def list_owned(directory: Path) -> list[str]:
        return [f"operators/{path.name}" for path in directory.glob("operators/*.md")]

    return run(__doc__, "docs", render, list_owned, arguments)


def docs_files(examples: Mapping[str, str]) -> dict[str, str]:
    """Path under ``docs/`` and text of every page; ``examples`` are the texts of docs/examples by their names."""
    families = {module.__name__.rpartition(".")[2]: _of_module(module) for module in FAMILIES}
    known = {row.name for family in families.values() for row in family.rows}
    for row in OPERATORS.values():  # one that no page is about has its own, in the words of its row
        if row.name not in known:
            families[row.name] = Family(title=row.name, rows=(row,), rules="", source="", example=(3, 1, 2, 1))
    pages = {f"operators/{name}.md": _family(family) for name, family in families.items()}
    return {
        "operators/README.md": _index(families),
        **pages,
        "own-operators.md": _own(examples),
        "adding-an-operator.md": _adding(),
        **performance_files(),
    }


def _of_module(module: ModuleType) -> Family:
    title, _, text = str(module.__doc__).strip().partition(".\n\n")
    rules, _, source = text.partition("\n\nSource: ")
    return Family(title=title, rows=module.ROWS, rules=rules, source=source, example=module.EXAMPLE)


def _banner() -> str:
    return f"<!-- written by {COMMAND} -->\n"


def _index(families: Mapping[str, Family]) -> str:
    rows = [
        f"| [{family.title}]({name}.md) | {', '.join(f'`{row.name}`' for row in family.rows)} |"
        for name, family in families.items()
    ]
    return "\n".join(
        (
            f"{_banner()}# Operators",
            "",
            "Each page states the formula, the dtypes, what NaN, ties and masked-out items do, and an example.",
            "Every operator runs in every layout and direction, with masks, segments and carries.",
            "",
            "| page | operators |",
            "|---|---|",
            *rows,
            "",
            "Not in the table: [write your own](../own-operators.md) in C++ expressions, or",
            "[add a row to the table](../adding-an-operator.md).",
            "",
        )
    )


def _family(family: Family) -> str:
    parts = [f"{_banner()}# {family.title}\n"]
    parts += [f"{family.rules}\n"] if family.rules else []
    parts += [_operator(row, family.example) for row in family.rows]
    parts += [f"Source: {family.source}\n"] if family.source else []
    return "\n".join(parts)


def _operator(row: Operator, example: tuple[float, ...]) -> str:
    legal = [name for name, dtype in DTYPES.items() if default_result(row.gives, dtype).kind in row.kinds]
    results = {name: default_result(row.gives, dtype_named(name)).name for name in legal}
    kept = [name for name, out in results.items() if out == name]
    widened = {out: [name for name in legal if results[name] == out and out != name] for out in results.values()}
    given = [f"{', '.join(kept)}: kept"] if kept else []
    given += [f"{', '.join(names)}: {out}" for out, names in widened.items() if names]
    further = [name for name, dtype in DTYPES.items() if dtype.kind in row.kinds and dtype.stored]
    counterpart = f"`torch.{row.torch_name}`" if row.torch_name else "none"
    called = f"scanops.{row.function}" if row.function else f'scanops.scan(x, "{row.name}", dim)'
    lines = [
        f"## `{row.name}`",
        "",
        f"    {row.formula}",
        "",
        "| | |",
        "|---|---|",
        f"| state | {_code(row.fields)} |",
        f"| lift: item to state | {_code(row.lift)} |",
        f"| combine | {_code(row.combine)} |",
        *([f"| append an element | {_code(row.append)} |"] if row.append else []),
        *(
            [f"| thread total | {_code(row.extend)}, while {_code(row.holds)}; then {_code(row.settle)} |"]
            if row.extend
            else []
        ),
        f"| identity | {_code(row.identity)} |",
        f"| resume: result to state (carry-in) | {_code(row.resumes) or 'none'} |",
        f"| project: state to result | {_code((row.project,))}"
        f"{', index ' + _code((row.indices,)) if row.indices else ''} |",
        f"| commutative | {'yes' if row.commutative else 'no'} |",
        f"| input: result by default | {'; '.join(given)} |",
        f"| `dtype=` may ask for | {', '.join(further)} |",
        f"| function, and torch's | `{called}`, {counterpart} |",
        f"| under autocast on a GPU | {'float32' if row.autocast else 'unchanged'} |",
        "",
        "```python",
        "import torch, scanops",
        "",
        *_example(row, example),
        "```",
        "",
    ]
    return "\n".join(lines)


def _code(texts: tuple[str, ...]) -> str:
    return ", ".join(f"`{' '.join(text.split())}`".replace("|", "\\|") for text in texts)


def _example(row: Operator, items: tuple[float, ...]) -> list[str]:
    """A call for each end, with results that the row's own recurrence gives."""
    dtype = next((name for kind, name in EXAMPLE_DTYPES.items() if kind in row.kinds), "int32")
    out = default_result(row.gives, dtype_named(dtype))
    h = row.start_of(out)
    states = [h]
    for place, item in enumerate(items):
        h = row.step(h, item, *((place,) if row.places_items else (GATE,) if row.gated else ()))
        states.append(h)
    found = [state[0] if row.indices else row.output(state) if row.output else state for state in states]
    shown = [_number(value, out.kind) for value in found]
    listed = ", ".join(_number(item, "float" if dtype == "float32" else "int") for item in items)
    call = f'scanops.scan(x, "{row.name}", 0)'
    if row.indices or row.gated:
        call = f"scanops.{row.function}({f'torch.tensor({GATE}), ' if row.gated else ''}x, 0)"
    ends = f"{call[:-1]}, exclusive=True)"
    lines = [f"x = torch.tensor([{listed}]{f', dtype=torch.{dtype}' if dtype != 'float32' else ''})"]
    values = ".values" if row.indices else ""
    lines += [_render_call(f"{call}{values}", shown[1:])]
    lines += [_render_call(f"{call}.indices", [str(state[1]) for state in states[1:]])] if row.indices else []
    return [*lines, _render_call(f"{ends}{values}", shown[:-1])]


def _render_call(call: str, shown: Sequence[str]) -> str:
    return f"print({call}.tolist())  # [{', '.join(shown)}]"


def _number(value: Any, kind: str) -> str:
    if kind == "bool":
        return str(bool(value))
    if kind == "float":
        return str(round(float(value), 4))
    if kind == "complex":
        return str(complex(round(value.real, 4), round(value.imag, 4)))
    return str(int(value))


def _own(examples: Mapping[str, str]) -> str:
    shown = "\n".join(
        f"## {title}\n\n[docs/examples/{name}.py](examples/{name}.py)\n\n```python g++ slow\n{examples[name]}```\n"
        for name, title in EXAMPLES.items()
    )
    return f"""{_banner()}# Your own operator

Write a custom operator where torch has none: as a few Python functions of one or several tensors, which are traced and
rendered to CUDA with their gradients.

## Define it

```python
import torch, scanops

mean = scanops.operator(  # y[i] = (w[0] x[0] + ... + w[i] x[i]) / (w[0] + ... + w[i])
    fields=("weight", "total"),
    lift=lambda x, w: (w, w * x),
    combine=lambda older, newer: (older.weight + newer.weight, older.total + newer.total),
    project=lambda state: state.total / state.weight,
)
x, w = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.0, 1.0, 2.0])
print(scanops.scan((x, w), mean, 0).tolist())  # [1.0, 1.5, 3.75]
```

A state has named `fields`, in the dtype of the items or in one of their own. `lift` makes the state of an item from the
items of the tensors (without it they are the fields), `combine` is the associative operator on an `older` and a `newer`
state, `identity` its neutral state, and `project` makes up to four results of a state.
**`identity` may be left out where 0 is neutral.** Kernels start from it, so `operator` tries some states and refuses
a `combine` that 0 changes, such as a maximum, which needs `-math.inf`. The functions may do what those
of [`map` and `then`](fusion.md#what-a-function-may-do) may, which go with such operators: `lift` gets what `map`
returns, and `then` what `project` returns, a tuple if there are several. Own operators go with
`mask`, `reverse`, `exclusive` and `dtype`; they take no segments, no carries and no `complete`.

**A recurrence** of any order that is linear in its state is given by its `step` alone, and its combine is derived:

```python g++
import torch, scanops

resonator = scanops.operator(  # y[i] = x[i] - a y[i-1] - b y[i-2]
    fields=("last", "before"),
    step=lambda y, x, a, b: (x - a * y.last - b * y.before, y.last),
    project=lambda y: y.last,
)
x = torch.randn(2, 500, requires_grad=True)
a, b = -1.2 * torch.ones(2, 1), 0.5 * torch.ones(2, 1)  # for each line; numbers and tensors of x's shape serve as well
with scanops.emulate():  # the kernels, on a CPU
    y = scanops.scan((x, a, b), resonator, 1)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
torch.testing.assert_close(scanops.scan((x, a, b), resonator, 1), y)
print(scanops.check_operator(resonator, lengths=(6, 601)).ok)  # True
```

**Gradients** are scans: the gradient of a state is a linear recurrence from the other end, whose matrix is the
derivative of a combine by its older state. Entries of it that are 0 or equal in every product are left out or shared;
where more than 24 are left, or a kernel would read more than 8 tensors, PyTorch differentiates its own log2(n) passes.
These also compute results on CPU tensors; `vmap`, `torch.compile` and export take the operator as other scans.

## Check it

`check_operator` tests on random states whether `combine` is associative and has its identity, in the dtypes that you
ask for: integers and bits exactly, floats in float64. Then it compares emulated kernels of every strategy with
PyTorch's operators, without a GPU. A report that is not ok names the law, the field and the items that break it.

```python g++ slow
import torch, scanops

latches = scanops.operator(  # 32 bits that are set and reset: an item keeps some and sets others
    fields=("keep", "set"),
    identity=(-1, 0),
    combine=lambda older, newer: (older.keep & newer.keep, (older.set & newer.keep) | newer.set),
    project=lambda state: state.set,
)
assert scanops.check_operator(latches, dtypes=[torch.int32], lengths=(6, 601)).ok

difference = scanops.operator(  # wrong on purpose
    fields=("a",), identity=0, combine=lambda older, newer: older.a - newer.a
)
print(scanops.check_operator(difference, lengths=()).findings[0].law)  # identity on the left
```

**Where an index is part of the state**, as in a running argmax, pass `torch.arange(n)` as one more tensor and declare
the field's dtype: `fields={{"value": None, "index": torch.int64}}`. An operator that ships with scanops is a row of a
table, which [contributors](adding-an-operator.md) edit.

{shown}"""


def _adding() -> str:
    row: Operator = eval(ADDED.strip().rstrip(","), {"Operator": Operator})
    text = Path(bits.__file__).read_text(encoding="utf-8").replace(ADDED, "")  # there if a reader has followed the page
    more = text.removesuffix(")\n") + ADDED + ")\n"
    OPERATORS[row.name] = row
    try:
        kernel = render(make_plan(f"{row.name}-{ADDED_SPEC}"))
    finally:
        del OPERATORS[row.name]
    sibling = render(make_plan(f"bitwise_xor-{ADDED_SPEC}"))
    name = f"generated/{row.name}-{ADDED_SPEC}.cu"
    return f"""{_banner()}# Adding an operator to the table

One row in a module of `codegen/operators`:

```diff
{re.sub(r"@@ .* @@", "@@ ROWS @@", _diff(text, more, MODULE, MODULE, 2))}
```

The API, its error messages, every strategy and direction, masks, the tests and these pages read the table. The kernel
of the new operator differs from that of an existing one only in what the row says:

```diff
{_diff(sibling, kernel, f"bitwise_xor-{ADDED_SPEC}", f"{row.name}-{ADDED_SPEC}", 0)}
```

With a line in `tools/golden.py`, `make golden` adds the whole kernel:

```diff
{_diff("", kernel, "/dev/null", name, 0)}
```
"""


def _diff(old: str, new: str, old_name: str, new_name: str, context: int) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="", n=context)
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
