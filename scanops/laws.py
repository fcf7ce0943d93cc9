"""``check_operator``: whether what somebody wrote is an operator that can be scanned with, found out on a CPU."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import torch

from scanops.api import scan
from scanops.artifact import CPU, BuildRequest
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import OPERATORS, Operator, register_operator
from scanops.codegen.plan import make_plan
from scanops.codegen.source import environment
from scanops.codegen.spec import ScanSpec
from scanops.composed import reference
from scanops.emulation import emulate
from scanops.errors import UnsupportedRequest
from scanops.requests.request import make_request
from scanops.storage.identity import expressions
from scanops.store.library import load
from scanops.store.store import Store
from scanops.tuning.choice import planned

__all__ = ["Finding", "OperatorReport", "check_operator"]

IDENTITY, JOIN = -1, -2  # codes of laws.j2
TRIPLES = 600  # of random stretches, of 1 to 3 items each
LENGTHS = (1, 6, 64, 127, 601, 2047, 40003, 131076)  # each strategy has one of them
COLUMNS = 33  # lines side by side; an odd number
SMALL = 2**17  # items of a tensor by columns: an emulated item takes a microsecond
RARE = 50  # one in so many items is NaN or infinite, where they are among the samples
# Of each kind: where laws are tested, so that rounding is far below what a broken law does; what is scanned by default;
# and the samples, to which the dtype's own bounds are added for integers.
LAW_DTYPES = {"float": torch.float64, "int": torch.int64, "bool": torch.bool}
SCAN_DTYPES = {"float": torch.float32, "int": torch.int32, "bool": torch.bool}
SAMPLES: dict[str, tuple[float, ...]] = {
    "float": (1.0, 0.0, -1.0, 2.0, 0.5, -1.5, 3.0, 0.1, -0.0, math.nan, math.inf, -math.inf),
    "int": (1, 0, -1, 2, 3, -5, 7, 100),
    "bool": (0, 1),
}
LAW_TOLERANCE = 1e-9  # relative, in float64

_CHECKING = threading.Lock()  # one at a time: two checks of one operator have one name


def _after_fork() -> None:
    """Another thread of the parent may have been checking, and is not here to release the lock."""
    global _CHECKING
    _CHECKING = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong with an operator."""

    law: str  # what does not hold
    dtype: str  # where
    example: str  # values that show it

    def __str__(self) -> str:
        return f"{self.law} ({self.dtype}): {self.example}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorReport:
    """What ``check_operator`` found, at most one finding for each law and dtype."""

    operator: str  # its name
    findings: tuple[Finding, ...]
    laws: int  # pairs of joined stretches that were compared
    scans: int  # that were held to the reference
    items: int  # of them
    strategies: tuple[str, ...]  # the families of kernels they ran in

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        done = f"{self.laws} joins, {self.scans} scans of {self.items} items ({', '.join(self.strategies)})"
        if self.ok:
            return f"{self.operator}: nothing wrong in {done}"
        return "\n".join([f"{self.operator}: {len(self.findings)} found in {done}", *map(str, self.findings)])


def check_operator(
    op: Operator,
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    lengths: Iterable[int] = LENGTHS,
    samples: Sequence[float] | None = None,
    seed: int = 1,
) -> OperatorReport:
    """Whether ``op`` is associative, has its identity and agrees with its reference: tested on the emulator.

    The C++ of the operator is compiled by g++, as part of a small program and of the very kernels a GPU would run. In
    the first, stretches a, b, c of a few items each are joined:

        combine(identity, a) = a = combine(a, identity)
        combine(combine(a, b), c) = combine(a, combine(b, c))
        combine(a, b) = combine(b, a), if ``op.commutative``

    Integers must be equal. Floats are joined in float64, where rounding cannot be taken for a broken law. Then whole
    scans, in every strategy that ``lengths`` lead to, forward and reverse, inclusive and exclusive, masked and not, are
    compared with ``step``: integers exactly, floats to within rounding of the greatest result so far, up to where
    results outgrow the square root of what the accumulator holds.

    Nothing is registered, so that a name is free until the operator is right.

    Args:
        op: the operator.
        dtypes: of the inputs to scan; by default float32, int32 and bool, as far as they are legal.
        lengths: of the lines; the default leads to every strategy.
        samples: the items to draw from. By default small numbers, NaN, infinities and the bounds of integers. Pass
            finite ones for an operator that promises nothing of the others: inf * 0 makes even a matrix product depend
            on the order.
        seed: of the drawn items and of the order of emulated threads.

    Returns:
        A report: ``.ok``, ``.findings`` with an example of each thing that is wrong; ``print`` it to read them.
        A broken law is no error: nothing is raised for it.

    Raises:
        UnsupportedRequest: a dtype that is not legal for the operator, or an option that is not as described.
        BuildFailure: C++ that does not compile; the message has the expressions and the compiler's words.

    Example:
        >>> print(check_operator(op))  # doctest: +SKIP
        last_valid: nothing wrong in 5400 joins, 46 scans of 947862 items (block, columns, split, staged, warp, wave)
    """
    _check_options(op, lengths, samples)
    with _registered(op) as name:
        scanned = [SCAN_DTYPES[kind] for kind in op.kinds if kind in SCAN_DTYPES] if dtypes is None else list(dtypes)
        findings: list[Finding] = []
        strategies: set[str] = set()
        compared = scans = items = 0
        for kind in (kind for kind in op.kinds if kind in LAW_DTYPES):
            found, count = _laws(name, op, LAW_DTYPES[kind], samples, seed)
            findings += found
            compared += count
        for dtype in scanned:
            agreement = _Agreement(name=name, operator=op, dtype=dtype, samples=samples, seed=seed)
            finding = agreement.check(sorted(set(lengths)))
            findings += [finding] if finding else []
            scans, items, strategies = scans + agreement.scans, items + agreement.items, strategies | agreement.seen
    return OperatorReport(
        operator=op.name,
        findings=tuple(findings),
        laws=compared,
        scans=scans,
        items=items,
        strategies=tuple(sorted(strategies)),
    )


def _check_options(op: object, lengths: Iterable[int], samples: Sequence[float] | None) -> None:
    if not isinstance(op, Operator):
        raise UnsupportedRequest(
            "to check an operator", allowed="a scanops.Operator", value=repr(op), hint="construct one, see its example"
        )
    if not all(type(length) is int and 1 <= length <= SMALL * 8 for length in lengths):
        raise UnsupportedRequest(
            "to check an operator on lines of these lengths",
            allowed=f"whole numbers from 1 to {SMALL * 8}",
            value=f"lengths={lengths!r}",
            hint="leave lengths out: the default leads to every strategy",
        )
    if samples is not None and not (len(samples) and all(isinstance(item, int | float) for item in samples)):
        raise UnsupportedRequest(
            "to check an operator on these items",
            allowed="a sequence of one number or more",
            value=f"samples={samples!r}",
            hint="leave samples out, or pass for example (0.0, 1.0, -1.0, 0.5)",
        )


@contextmanager
def _registered(op: Operator) -> Iterator[str]:
    """``op`` under a name that follows from its content, for as long as it is checked."""
    name = f"{op.name[:36]}_{sha256(repr(op.content).encode()).hexdigest()[:8]}"
    with _CHECKING:
        register_operator(replace(op, name=name, indices=""))
        try:
            yield name
        finally:
            del OPERATORS[name]


def _drawn_from(dtype: torch.dtype, samples: Sequence[float] | None) -> list[float]:
    """The samples that a dtype holds."""
    row = dtype_named(dtype)
    if row.kind == "float":
        return [float(item) for item in samples or SAMPLES["float"]]
    if samples is None:
        bounds = (row.lowest, row.highest) if row.kind == "int" else ()
        samples = (*SAMPLES[row.kind], *bounds)
    return [int(item) for item in samples if math.isfinite(item) and row.lowest <= item <= row.highest] or [0, 1]


# ---- laws: stretches joined in two ways


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


def _laws(
    name: str, op: Operator, dtype: torch.dtype, samples: Sequence[float] | None, seed: int
) -> tuple[list[Finding], int]:
    """The first, smallest example of each law that does not hold, and how many pairs were compared."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.tensor(_drawn_from(dtype, samples), dtype=dtype)
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


def _listed(values: list[float]) -> str:
    return str(values[0]) if len(values) == 1 else f"the stretch {values}"


def _differ(left: torch.Tensor, right: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    if not left.dtype.is_floating_point:
        return left != right
    finite = items[items.isfinite()].abs()
    scale = torch.maximum(left.abs(), right.abs()).clamp(min=max(1.0, float(finite.max()) if len(finite) else 1.0))
    same = (left == right) | (left.isnan() & right.isnan())
    near = (left - right).abs() <= LAW_TOLERANCE * scale
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


# ---- agreement: whole scans against the recurrence


class _Agreement:
    """Scans of one dtype, held to the reference."""

    def __init__(
        self, *, name: str, operator: Operator, dtype: torch.dtype, samples: Sequence[float] | None, seed: int
    ) -> None:
        self.scans = self.items = 0
        self.seen: set[str] = set()
        self._name, self._operator, self._dtype, self._seed = name, operator, dtype, seed
        drawn = _drawn_from(dtype, samples)
        self._finite = torch.tensor([item for item in drawn if math.isfinite(item)] or [0], dtype=dtype)
        self._rare = torch.tensor([item for item in drawn if not math.isfinite(item)] or [drawn[0]], dtype=dtype)
        self._generator = torch.Generator().manual_seed(seed)

    def check(self, lengths: Sequence[int]) -> Finding | None:
        """The first scan that is wrong."""
        turns = itertools.cycle(itertools.product((False, True), (False, True)))
        for number, (x, dim) in enumerate(self._inputs(lengths)):
            strategy = self._strategy(x, dim)
            every = strategy not in self.seen
            self.seen.add(strategy)
            flags = [next(turns) for _ in range(4)] if every else [next(turns)]
            for reverse, exclusive in sorted(flags):
                mask = torch.rand(x.shape, generator=self._generator) < 0.7 if (number + reverse) % 2 else None
                wrong = self._compare(x, dim, mask, reverse, exclusive)
                if wrong:
                    words = [f"x of shape {tuple(x.shape)} along {dim}", *(["a bool mask"] if mask is not None else [])]
                    words += ["reverse"] * reverse + ["exclusive"] * exclusive + [f"strategy {strategy}"]
                    return Finding(
                        law="agreement with the reference",
                        dtype=str(self._dtype).removeprefix("torch."),
                        example=f"{', '.join(words)}: {wrong}",
                    )
        return None

    def _inputs(self, lengths: Sequence[int]) -> Iterator[tuple[torch.Tensor, int]]:
        for length in lengths:
            yield self._draw((5 if length < SMALL // 2 else 2, length), special=False), 1  # many rows, and few
            if length * COLUMNS <= SMALL:
                yield self._draw((1, length, COLUMNS), special=True), 1
                yield self._draw((length, COLUMNS + 7), special=True).t(), 1

    def _draw(self, shape: tuple[int, ...], *, special: bool) -> torch.Tensor:
        items = self._finite[torch.randint(len(self._finite), shape, generator=self._generator)]
        rare = self._rare[torch.randint(len(self._rare), shape, generator=self._generator)]
        chosen = torch.rand(shape, generator=self._generator) < 1 / RARE
        return torch.where(chosen, rare, items) if special else items

    def _strategy(self, x: torch.Tensor, dim: int) -> str:
        options: dict[str, Any] = {"mask": None, "reverse": False, "exclusive": False, "dtype": None, "out": None}
        with emulate(seed=self._seed) as emulation:
            request = make_request(x, self._name, dim, **options)
            out = torch.empty(x.shape, dtype=request.dtype)
            return make_plan(request.spec(out, emulation.multiprocessors), planned(CPU)).strategy

    def _compare(self, x: torch.Tensor, dim: int, mask: torch.Tensor | None, reverse: bool, exclusive: bool) -> str:
        """What is wrong, in words; empty: nothing."""
        with emulate(seed=self._seed):
            y = scan(x, self._name, dim, mask=mask, reverse=reverse, exclusive=exclusive)
        floating = y.dtype.is_floating_point
        try:
            wide = torch.float64 if floating else y.dtype
            expected = reference.scan(
                x.to(y.dtype), self._name, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=wide
            )
        except Exception as problem:  # whatever somebody's function raises is a finding
            words = str(problem).splitlines()[0] if str(problem) else ""
            return f"the reference raised {type(problem).__name__}: {words} (it is given tensors: use torch.where)"
        wrong = (y != expected) if not floating else self._far(y, expected, dim, reverse)
        self.scans += 1
        self.items += 0 if floating else y.numel()
        count = int(wrong.sum())
        if not count:
            return ""
        at = tuple(wrong.nonzero()[0].tolist())
        return f"y[{', '.join(map(str, at))}] = {y[at].item()}, reference {expected[at].item()}; {count} of {y.numel()}"

    def _far(self, y: torch.Tensor, expected: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
        """Off by more than rounding, while results are of a size at which nothing overflows."""
        accumulator = torch.float32 if y.dtype in (torch.float16, torch.bfloat16) else y.dtype
        turned = expected.flip(dim) if reverse else expected
        so_far = torch.where(turned.isfinite(), turned.abs(), 0).cummax(dim).values
        so_far = so_far.flip(dim) if reverse else so_far
        most = min(math.sqrt(torch.finfo(accumulator).max), torch.finfo(y.dtype).max / 2)
        share = 8 * torch.finfo(y.dtype).eps + (1e-9 if y.dtype == torch.float64 else 1e-3)
        wide = y.to(expected.dtype)
        same = (wide == expected) | (wide.isnan() & expected.isnan())
        near = (wide - expected).abs() <= share * so_far.clamp(min=1.0)
        compared = so_far < most
        self.items += int(compared.sum())
        return compared & ~(same | (near & wide.isfinite() & expected.isfinite()))
