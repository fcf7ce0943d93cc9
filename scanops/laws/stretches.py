"""Laws: stretches of items joined in two ways that must come to the same."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from scanops.artifact import CPU, BuildRequest
from scanops.codegen.operators import Operator
from scanops.codegen.plan import make_plan
from scanops.codegen.source import environment
from scanops.codegen.spec import ScanSpec
from scanops.laws.report import Finding
from scanops.laws.samples import drawn_from
from scanops.store.identity import expressions
from scanops.store.library import load
from scanops.store.store import Store
from scanops.tuning.choice import planned

__all__ = ["broken"]

IDENTITY, JOIN = -1, -2  # codes of laws.j2
TRIPLES = 600  # of random stretches, of 1 to 3 items each
TOLERANCE = 1e-9  # relative, in float64


class _LawArguments(ctypes.Structure):
    _fields_ = (
        ("input", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("programs", ctypes.c_longlong),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Law:
    """Two programs over the stretches a, b, c that have one result."""

    name: str
    stretches: int
    left: str  # in words, and
    right: str
    programs: Callable[..., tuple[list[int], list[int]]]  # from the stretches' own


LAWS = (
    _Law(
        name="identity on the left",
        stretches=1,
        left="combine(identity, a)",
        right="a",
        programs=lambda a: ([IDENTITY, *a, JOIN], a),
    ),
    _Law(
        name="identity on the right",
        stretches=1,
        left="combine(a, identity)",
        right="a",
        programs=lambda a: ([*a, IDENTITY, JOIN], a),
    ),
    _Law(
        name="associativity",
        stretches=3,
        left="combine(combine(a, b), c)",
        right="combine(a, combine(b, c))",
        programs=lambda a, b, c: ([*a, *b, JOIN, *c, JOIN], [*a, *b, *c, JOIN, JOIN]),
    ),
)
COMMUTATIVITY = _Law(
    name="commutativity, which the operator claims",
    stretches=2,
    left="combine(a, b)",
    right="combine(b, a)",
    programs=lambda a, b: ([*a, *b, JOIN], [*b, *a, JOIN]),
)


def broken(
    name: str, op: Operator, dtype: torch.dtype, samples: Sequence[complex] | None, seed: int
) -> tuple[list[Finding], int]:
    """The first, smallest example of each law that does not hold, and how many pairs were compared."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.tensor(drawn_from(dtype, samples), dtype=dtype)
    # Single items in every combination of the first few samples, then stretches at random: the smallest come first.
    few = range(min(len(drawn), 13))
    groups = [[[item] for item in group] for group in itertools.product(few, repeat=3)]
    sizes = torch.randint(1, 4, (TRIPLES, 3), generator=generator).tolist()
    picks = torch.randint(len(drawn), (TRIPLES, 9), generator=generator).tolist()
    groups += [[row[:a], row[3 : 3 + b], row[6 : 6 + c]] for (a, b, c), row in zip(sizes, picks, strict=True)]
    groups.sort(key=lambda group: sum(map(len, group)))
    run = _machine(name, op, dtype)
    findings, compared = [], 0
    for law in (*LAWS, *((COMMUTATIVITY,) if op.commutative else ())):
        items = torch.stack([drawn[index] for group in groups for part in group for index in part])
        place, pairs = 0, []
        for group in groups:
            stretches = []
            for part in group:
                stretches.append([place, *itertools.chain(*((place + k, JOIN) for k in range(1, len(part))))])
                place += len(part)
            pairs.append(law.programs(*stretches[: law.stretches]))
        left, right = run(items, [pair[0] for pair in pairs]), run(items, [pair[1] for pair in pairs])
        compared += len(pairs)
        wrong = _differ(left, right, items).nonzero().flatten().tolist()
        if wrong:
            values = [[drawn[index].item() for index in part] for part in groups[wrong[0]][: law.stretches]]
            where = ", ".join(f"{letter} = {_listed(part)}" for letter, part in zip("abc", values, strict=False))
            example = f"{law.left} = {left[wrong[0]].item()}, but {law.right} = {right[wrong[0]].item()}, for {where}"
            findings.append(Finding(law=law.name, dtype=str(dtype).removeprefix("torch."), example=example))
    return findings, compared


def _listed(values: Sequence[complex]) -> str:
    return str(values[0]) if len(values) == 1 else f"the stretch {values}"


def _differ(left: torch.Tensor, right: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    if not (left.dtype.is_floating_point or left.dtype.is_complex):
        return left != right
    finite = items[items.isfinite()].abs()
    scale = torch.maximum(left.abs(), right.abs()).clamp(min=max(1.0, float(finite.max()) if len(finite) else 1.0))
    same = (left == right) | (left.isnan() & right.isnan())
    near = (left - right).abs() <= TOLERANCE * scale
    return ~(same | (near & left.isfinite() & right.isfinite()))


def _machine(name: str, op: Operator, dtype: torch.dtype) -> Callable[[torch.Tensor, list[list[int]]], torch.Tensor]:
    """The operator's C++ in a program of its own: results of programs over items."""
    word = str(dtype)
    spec = ScanSpec(op=name, dtype=word, out_dtype=word, length=4)
    text = environment().get_template("laws.j2").render(plan=make_plan(spec, planned(CPU)))
    request = BuildRequest(name=f"laws-{name}-{spec.input.tag}", source=text, target=CPU, written=expressions(op))
    library = load(Store().get_or_build(request))

    def run(items: torch.Tensor, programs: list[list[int]]) -> torch.Tensor:
        codes = torch.tensor(list(itertools.chain(*programs)), dtype=torch.int32)
        ends = torch.tensor(list(itertools.accumulate(map(len, programs))), dtype=torch.int32)
        output = torch.empty(len(programs), dtype=dtype)
        arguments = _LawArguments(items.data_ptr(), codes.data_ptr(), ends.data_ptr(), output.data_ptr(), len(programs))
        library.scanops_launch(ctypes.byref(arguments), None)
        return output

    return run
