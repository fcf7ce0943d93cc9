"""The pages of ``docs/`` that follow from the operator table: ``python -m scanops.codegen --docs`` writes them.

What a page says of one operator is read from its row, its example is computed by the row's recurrence, and what it
takes to add an operator is shown with the texts that adding it gives.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanops.codegen import table
from scanops.codegen.dtypes import DTYPES, dtype_named
from scanops.codegen.operators import BUILT_IN, OPERATORS, Operator
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec

__all__ = ["COMMAND", "EXAMPLES", "docs_files"]

COMMAND = "python -m scanops.codegen --docs"
EXAMPLES = ("continuant", "last_valid", "argmax")  # in docs/examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Operators that one page is about."""

    title: str
    members: tuple[str, ...]
    rules: str  # what NaN, ties, overflow and a masked element do
    source: str  # of the method
    example: tuple[float, ...]  # elements


FAMILIES: Mapping[str, Family] = {
    "sums": Family(
        title="Sums and products",
        members=("sum", "prod"),
        rules="""Integers and bool widen to int64 and wrap, as torch's do. Half types accumulate in float32 and are
rounded once, at the end. A NaN or an infinity carries on as IEEE 754 has it. A masked-out item
counts as the identity, whatever its value, NaN included.""",
        source="Merrill and Garland, \"Single-pass Parallel Prefix Scan with Decoupled Look-back\" (2016), with totals "
        "folded in one order always, so that the bits of a result never depend on timing.",
        example=(3, 1, 2, -1),
    ),
    "extremes": Family(
        title="Greatest and least",
        members=("max", "min", "cummax", "cummin"),
        rules="""A NaN is greater than anything to a maximum and less than anything to a minimum: from the first one
on the result is NaN. Of equal items, and of NaNs, an index is that of the last one met; `reverse`
meets them from the end, and indices are those of the input either way. Where nothing has been met
(all masked out, or the scan is exclusive) the value is the identity and the index -1.""",
        source="Pairs of a value and its index under the order of both are associative: "
        "Blelloch, \"Prefix Sums and Their Applications\" (1990).",
        example=(2, 3, 3, 1),
    ),
    "logcumsumexp": Family(
        title="Logarithms of sums of exponentials",
        members=("logcumsumexp",),
        rules="""Nothing overflows on the way: a stretch is its greatest term and the others as fractions of it. An
item of -inf, or masked out, adds nothing; where there is nothing else the result is -inf. From the
first inf on it is inf, from the first NaN on NaN. Half types accumulate in float32.""",
        source="Milakov and Gimelshein, \"Online normalizer calculation for softmax\" (2018); "
        "the greatest term's own 1 is left out of the sum here, which keeps its small part.",
        example=(0, 0, 1000, 1),
    ),
    "recurrences": Family(
        title="Linear recurrences",
        members=("linear",),
        rules="""Called as `scanops.linear_scan(gate, x, dim)`. Results are those of the recurrence computed item by
item, to within rounding: NaN, infinite items and zero gates do to a result what they do there. From an
infinite gate on no result is finite, as there, but NaN may stand where the recurrence has an infinity. The
product of a stretch's gates is kept with its exponent beside it, so it neither overflows nor vanishes where
no gate is infinite or zero. A masked-out item leaves the result as it was.""",
        source="Pairs of a gate and a value, (a, b) then (c, d) -> (ca, cb + d): "
        "Blelloch, \"Prefix Sums and Their Applications\" (1990), section 1.4.",
        example=(8, 0, 0, 1),
    ),
    "bits": Family(
        title="Bits and truth",
        members=("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or"),
        rules="""The bitwise ones take bool and integers and keep the dtype. The logical ones take any dtype, to
which anything but 0 is true (NaN is), and give bool.""",
        source="Blelloch, \"Prefix Sums and Their Applications\" (1990).",
        example=(6, 3, 2, 0),
    ),
}  # fmt: skip

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
TABLE_ENDS = ")\n\nBUILT_IN"
GATE = 0.5  # of examples
EXAMPLE_DTYPES = {"float": "float32", "int": "int32", "complex": "complex64"}  # of an operator of these kinds
ADDED_SPEC = "i32-n4"


def docs_files(examples: Mapping[str, str]) -> dict[str, str]:
    """Path under ``docs/`` and text of every page; ``examples`` are the texts of docs/examples by their names."""
    families = dict(FAMILIES)
    for row in BUILT_IN.values():  # one that no page is about has its own, in the words of its row
        if not any(row.name in family.members for family in families.values()):
            families[row.name] = Family(title=row.name, members=(row.name,), rules="", source="", example=(3, 1, 2, 1))
    pages = {f"operators/{name}.md": _family(family) for name, family in families.items()}
    return {
        "README.md": _index(families),
        **pages,
        "own-operators.md": _own(examples),
        "adding-an-operator.md": _adding(),
    }


def _written() -> str:
    return f"<!-- written by {COMMAND} -->\n"


def _index(families: Mapping[str, Family]) -> str:
    rows = [
        f"| [{family.title}](operators/{name}.md) | {', '.join(f'`{member}`' for member in family.members)} |"
        for name, family in families.items()
    ]
    return "\n".join(
        (
            f"{_written()}# Scans by operator",
            "",
            "An operator is one row of a table: how an element becomes a state, how the states of an older and a newer",
            "stretch are joined, and what comes out of a state. Strategies, directions, masks and dtypes are the same "
            "for all.",
            "",
            "| page | operators |",
            "|---|---|",
            *rows,
            "",
            "* [Streams, packed sequences, recurrences](variants.md): `initial`, `offsets`, `linear_scan`",
            "* [Policies on a miss, recording and building ahead](precompile.md)",
            "* [An operator of your own](own-operators.md), without touching the table: three worked examples",
            "* [Adding one to the table](adding-an-operator.md), shown as the diff that it is",
            "* [Derivatives](derivatives.md): one recurrence for all of them, and who computes it",
            "* [In PyTorch programs](pytorch.md): compilers, transforms, autocast, DTensor, and what goes with what",
            "* [Models with scans in them](../examples/README.md), trained with scanops and without to the same loss",
            "* [Accuracy](accuracy.md): ours and torch's against float64",
            "* [Files that stand on their own](export.md): a kernel for a process that has no scanops",
            "* [Packs](deployment.md): kernels built once, run where nothing can be built",
            "* [The store](store.md): what happens when files are harmed, disks are full, and many ask at once",
            "",
        )
    )


def _family(family: Family) -> str:
    parts = [f"{_written()}# {family.title}\n"]
    parts += [f"{family.rules}\n"] if family.rules else []
    parts += [_operator(BUILT_IN[name], family.example) for name in family.members]
    parts += [f"Source: {family.source}\n"] if family.source else []
    return "\n".join(parts)


def _operator(row: Operator, example: tuple[float, ...]) -> str:
    legal = [name for name, dtype in DTYPES.items() if row.result(dtype).kind in row.kinds]
    results = {name: row.result(dtype_named(name)).name for name in legal}
    kept = [name for name, out in results.items() if out == name]
    widened = {out: [name for name in legal if results[name] == out and out != name] for out in results.values()}
    given = [f"{', '.join(kept)}: kept"] if kept else []
    given += [f"{', '.join(names)}: {out}" for out, names in widened.items() if names]
    further = [name for name, dtype in DTYPES.items() if dtype.kind in row.kinds and dtype.stored]
    counterpart = f"`torch.{row.torch_name}`" if row.torch_name else "none"
    lines = [
        f"## `{row.name}`",
        "",
        f"    {row.formula}",
        "",
        "| | |",
        "|---|---|",
        f"| state | {_code(row.fields)} |",
        f"| lift | {_code(row.lift)} |",
        f"| combine | {_code(row.combine)} |",
        *([f"| append an element | {_code(row.append)} |"] if row.append else []),
        *(
            [f"| a thread's total | {_code(row.extend)}, while {_code(row.holds)}; then {_code(row.settle)} |"]
            if row.extend
            else []
        ),
        f"| identity | {_code(row.identity)} |",
        f"| resume | {_code(row.resumes) or 'none'} |",
        f"| project | {_code((row.project,))}{', index ' + _code((row.indices,)) if row.indices else ''} |",
        f"| commutative | {'yes' if row.commutative else 'no'} |",
        f"| input: result by default | {'; '.join(given)} |",
        f"| `dtype=` may ask for | {', '.join(further)} |",
        f"| torch | {counterpart} |",
        "",
        "```python",
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
    out = row.result(dtype_named(dtype))
    h = row.start_of(out)
    states = [h]
    for place, item in enumerate(items):
        h = row.step(h, item, *((place,) if row.places_items else (GATE,) if row.gated else ()))
        states.append(h)
    values = [state[0] if row.indices else row.output(state) if row.output else state for state in states]
    shown = [_number(value, out.kind) for value in values]
    listed = ", ".join(_number(item, "float" if dtype == "float32" else "int") for item in items)
    call = f'scanops.scan(x, "{row.name}", 0)'
    if row.indices or row.gated:
        call = f"scanops.linear_scan(torch.tensor({GATE}), x, 0)" if row.gated else f"scanops.{row.name}(x, 0)"
    ends = f"{call[:-1]}, exclusive=True)"
    lines = [f"x = torch.tensor([{listed}]{f', dtype=torch.{dtype}' if dtype != 'float32' else ''})"]
    lines += [f"{call}{'.values' if row.indices else ''}  # {', '.join(shown[1:])}"]
    lines += [f"{call}.indices  # {', '.join(str(state[1]) for state in states[1:])}"] if row.indices else []
    return [*lines, f"{ends}{'.values' if row.indices else ''}  # {', '.join(shown[:-1])}"]


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
        f"## {title}\n\n[docs/examples/{name}.py](examples/{name}.py)\n\n```python\n{examples[name]}```\n"
        for name, title in zip(EXAMPLES, ("A 2x2 matrix product", "Last valid value", "Running argmax"), strict=True)
    )
    return f"""{_written()}# An operator of your own

`scanops.Operator` defines a scan by C++ expressions: `lift` makes the state of an element `x`, `combine` is the
associative operator on the states of an `older` and a `newer` range of elements, `identity` is its neutral state, and
`project` maps a `state` to the output. The operator runs in every strategy and direction and with every mask, on a GPU
and in `scanops.emulate()`. `lift` and `identity` have one expression for each field of the state; a state of one field
is a plain number.

| in C++ | meaning |
|---|---|
| `x`, `i` | an element, converted to the accumulator's type `Value`, and its index along the line (an `int`) |
| `x` in `resume` | a carry-in, of which `resume` makes a state |
| `older.field`, `newer.field`, `state.field` | a field; `older`, `newer`, `state` alone if there is one field |
| `is_nan(value)` | defined for every dtype |
| `lowest`, `highest` | in `identity`: bounds of the accumulator's dtype, infinities for floating dtypes |
| `Value` | the accumulator's type; unsigned for integers, which wrap; signed with `ordered=True`, for comparisons |
| `x.re`, `Value{{1, 0}}` | real part, and a complex number; `+ - * /`, `== !=` also take real operands |

Fields have type `Value` unless `types` gives another for each: `"value"`, `"index"` (a 32-bit integer, which holds
every index along a line), `"int32"`, `"int64"`, `"float32"` or `"float64"`. **Declare every field that holds `i` as
`"index"`**: float32 represents integers exactly only up to 2^24, and longer lines are refused otherwise.

**An operator whose output is an index** sets `gives="index"`, as the [running argmax](#running-argmax) below: the
output is int64 (or int32 with `dtype=torch.int32`) and elements keep their dtype. An integer `dtype` does something
else: it converts the elements before the scan, as in `torch.cumsum`, and is refused for float elements of an operator
that reads `i`.

`combine` must be associative and need not be commutative. `start`, `step` and `output` define the same operator as the
recurrence `h = step(h, x)`, `y = output(h)` in Python, on tensors of one element per line. It computes results on the
CPU, under `torch.func` and for gradients, and `check_operator` compares the C++ with it:

```python
report = scanops.check_operator(op)  # compiles the C++ with g++; needs no GPU
print(report)  # a law that does not hold, with the elements that show it
assert report.ok
```

`scanops.scan(x, op, dim)` accepts the operator, and from then on its name. A name denotes one operator in a process;
`scanops.register_operator(op)` registers it before the first use. C++ that does not compile raises `BuildFailure` with
the expressions and the compiler's output.

{shown}"""


@contextmanager
def _added(row: Operator) -> Iterator[None]:
    known = dict(OPERATORS)
    OPERATORS[row.name] = row
    try:
        yield
    finally:
        OPERATORS.clear()
        OPERATORS.update(known)


def _adding() -> str:
    row: Operator = eval(ADDED.strip().rstrip(","), {"Operator": Operator})
    rows = Path(table.__file__).read_text(encoding="utf-8").replace(ADDED, "")  # whoever follows the page has it there
    more = rows.replace(TABLE_ENDS, ADDED + TABLE_ENDS, 1)
    with _added(row):
        kernel = generate(ScanSpec.parse(f"{row.name}-{ADDED_SPEC}"))
    sibling = generate(ScanSpec.parse(f"bitwise_xor-{ADDED_SPEC}"))
    name = f"generated/{row.name}-{ADDED_SPEC}.cu"
    return f"""{_written()}# Adding an operator to the table

One row. This is all there is to write:

```diff
{re.sub(r"@@ .* @@", "@@ _ROWS @@", _diff(rows, more, "codegen/table.py", "codegen/table.py", 2))}
```

The function, error messages, every strategy and direction, masks, the tests and these pages read the table. Beside an
operator that was there, the kernel of the new one differs in what the row says and nowhere else:

```diff
{_diff(sibling, kernel, f"bitwise_xor-{ADDED_SPEC}", f"{row.name}-{ADDED_SPEC}", 0)}
```

With a line in `codegen/golden.py`, `make golden` adds the whole kernel:

```diff
{_diff("", kernel, "/dev/null", name, 0)}
```
"""


def _diff(old: str, new: str, old_name: str, new_name: str, context: int) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="", n=context)
    return "\n".join(line.rstrip() for line in lines)
