"""``check_operator``: a random test of an operator's laws, and of its emulated kernels against PyTorch's results."""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from scanops.api import scan
from scanops.build_request import plan_for
from scanops.codegen.fusion.fusion import Fusion
from scanops.emulator import emulate
from scanops.errors import UnsupportedRequest
from scanops.fallback.fused import evaluate
from scanops.fusion.functions import trace_fusion
from scanops.fusion.operators import FieldOperator
from scanops.precompile import record

_LOG = logging.getLogger("scanops")
LENGTHS = (6, 64, 127, 601, 2047, 40003, 131076)  # together they reach every strategy
LONGEST = 2**20  # elements of a line: an emulated element takes about a microsecond
COLUMNS = 33  # neighbouring lines of a strided scan; odd, so that accesses are ragged
TRIPLES = 600  # random states a, b, c of each of these numbers of items, for the laws
SIZES = ((1, 1, 1), (1, 1, 2), (2, 1, 1), (3, 1, 2))
SAMPLES = {
    "float": (1.0, 0.0, -1.0, 2.0, 0.5, -1.5, 3.0, 0.1, -0.0),
    "int": (1, 0, -1, 2, 3, -5, 7, 100),
    "bool": (0, 1),
}
_DEFAULTS = (torch.float64, torch.int64, torch.int32, torch.bool)  # of all tensors; the first that the operator takes
# The law, its operands and its two sides.
LAWS = (
    ("identity on the left", "a", "combine(identity, a)", "a"),
    ("identity on the right", "a", "combine(a, identity)", "a"),
    ("associativity", "abc", "combine(combine(a, b), c)", "combine(a, combine(b, c))"),
)
InputDtypes = tuple[torch.dtype, ...]  # of the tensors that an operator scans
State = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake in an operator: the law that does not hold, for which dtypes, with values that show it."""

    law: str
    dtype: str
    example: str

    def __str__(self) -> str:
        return f"{self.law} ({self.dtype}): {self.example}"


@dataclass(slots=True)
class OperatorReport:
    """The result of ``check_operator``: its findings, and how much was compared."""

    operator: str  # its name
    findings: tuple[Finding, ...] = ()
    laws: int = 0  # pairs of states that were compared
    scans: int = 0  # scans whose kernels were compared with PyTorch's results
    items: int = 0  # elements of these scans
    strategies: tuple[str, ...] = ()  # strategies of the kernels that ran

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with the operator, as far as was tested."""
        return not self.findings

    def __str__(self) -> str:
        done = f"{self.laws} laws, {self.scans} scans of {self.items} items"
        done += f" ({', '.join(self.strategies)})" if self.strategies else ""
        return "\n".join(
            [f"{self.operator}: {len(self.findings) or 'nothing'} wrong in {done}", *map(str, self.findings)]
        )


@dataclass(slots=True)
class Check:
    """One run of ``check_operator``, and what it has counted."""

    op: FieldOperator
    samples: Sequence[float] | None
    seed: int
    report: OperatorReport

    def mistakes(self, dtypes: Sequence[InputDtypes], lengths: Sequence[int]) -> Iterator[Finding]:
        """Yield what is wrong: first in the laws, then in scans."""
        tested = dict.fromkeys(tuple(_widen(each) for each in given) for given in dtypes)
        for wide in tested:
            self._say(f"laws in {_words(wide)}")
            yield from self._broken_laws(wide)
        for number, given in enumerate(dtypes):
            self._say(f"scans of {_words(given)}")
            # Further dtypes run the same expressions: short lengths show what a type changes.
            yield from self._wrong_scans(given, lengths[:3] if number else lengths)

    def _say(self, phase: str) -> None:
        _LOG.info("check_operator %s: %s", self.op.name, phase)
        if sys.stderr.isatty():
            print(f"check_operator {self.op.name}: {phase}", file=sys.stderr, flush=True)

    def _draw(self, dtypes: InputDtypes, shape: tuple[int, ...], generator: torch.Generator, *, small: bool) -> State:
        """Return random items for each tensor: of the samples, and unless ``small`` of other numbers as well."""
        found = []
        for dtype in dtypes:
            kind = "float" if dtype.is_floating_point else "bool" if dtype == torch.bool else "int"
            known = self.samples or SAMPLES[kind]
            if kind == "int":
                least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
                known = [each for each in known if each == int(each) and least <= each <= most] or [0, 1]
            items = torch.tensor(known).to(dtype)[torch.randint(len(known), shape, generator=generator)]
            if self.samples is None and kind == "float":  # products of round numbers hide an order of operands
                items = (torch.rand(shape, generator=generator, dtype=torch.float64) * 3 - 1.5).to(dtype)
            elif self.samples is None and kind == "int" and not small:
                other = torch.randint(max(least, -(2**15)), min(most, 2**15), shape, generator=generator)
                items = torch.where(torch.rand(shape, generator=generator) < 0.5, items, other.to(dtype))
            found.append(items)
        return tuple(found)

    def _broken_laws(self, dtypes: InputDtypes) -> Iterator[Finding]:
        """Yield the counterexamples to each law, of states of one item before those of several."""
        fusion, generator = trace(self.op, dtypes), torch.Generator().manual_seed(self.seed)
        names = [each.name for each in fusion.fields] if self.op.step else list(self.op.dtypes)

        def combine(older: State, newer: State) -> State:
            found = evaluate(fusion.nodes, fusion.combine, {"older": older, "newer": newer}, {})
            return tuple(each.expand(TRIPLES) for each in found)

        for sizes in SIZES:
            count, ends = sum(sizes), list(itertools.accumulate(sizes, initial=0))
            items = self._draw(dtypes, (count * TRIPLES,), generator, small=False)
            lifted = evaluate(fusion.nodes, fusion.elements, {"operand": items}, {})
            states = list(zip(*(each.expand(count * TRIPLES).chunk(count) for each in lifted), strict=True))
            a, b, c = (reduce(combine, states[begin:end]) for begin, end in itertools.pairwise(ends))
            none = tuple(torch.full_like(each, field.identity) for each, field in zip(a, fusion.fields, strict=True))
            sides = (combine(none, a), a), (combine(a, none), a), (combine(combine(a, b), c), combine(a, combine(b, c)))
            for (law, operands, *words), pair in zip(LAWS, sides, strict=True):
                self.report.laws += TRIPLES
                for name, left, right in zip(names, *pair, strict=True):
                    scale = size_of(left).maximum(size_of(right))
                    for test in apart(left, right, scale, 1e-9).nonzero().flatten().tolist():
                        shown = (
                            f"{letter} of {_items(items, [test + k * TRIPLES for k in range(begin, end)])}"
                            for letter, (begin, end) in zip(operands, itertools.pairwise(ends), strict=False)
                        )
                        values = f"{words[0]} has {left[test].item()}, but {words[1]} {right[test].item()}"
                        example = f"in the field {name!r}, {values}, for {'; '.join(shown)}"
                        yield Finding(law, _words(dtypes), example)

    def _wrong_scans(self, dtypes: InputDtypes, lengths: Sequence[int]) -> Iterator[Finding]:
        """Yield the scans whose kernels give other results than PyTorch's operators give, of floats in float64."""
        generator = torch.Generator().manual_seed(self.seed)
        turns = itertools.cycle(itertools.product((False, True), repeat=3))
        shapes = [shape for n in lengths for shape in ((5 if n < 2**16 else 2, n), (1, n, COLUMNS))]
        for shape in shapes:
            if len(shape) == 3 and shape[1] * COLUMNS > 2**17:
                continue
            masked, reverse, exclusive = next(turns)
            x = self._draw(dtypes, shape, generator, small=True)
            mask = torch.rand(shape, generator=generator) < 0.7 if masked else None
            options: dict[str, Any] = {"mask": mask, "reverse": reverse, "exclusive": exclusive}
            with emulate(seed=self.seed), record() as used:
                made = scan(x, self.op, 1, **options)
            names = {plan_for(key).strategy for key in used.counts}
            self.report.strategies = tuple(sorted({*self.report.strategies, *names}))
            wanted = scan([each.to(_widen(each.dtype)) for each in x], self.op, 1, **options)
            self.report.scans += 1
            pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (made, wanted)), strict=True)
            for number, (found, exact) in enumerate(pairs):
                scale = size_of(exact)
                scale = scale.flip(1).cummax(1).values.flip(1) if reverse else scale.cummax(1).values
                compared, share = torch.ones_like(scale, dtype=torch.bool), 0.0
                if found.is_floating_point():  # as long as nothing overflows
                    compared = scale < math.sqrt(torch.finfo(found.dtype).max)
                    share = 1e-3 + 8 * torch.finfo(found.dtype).eps
                self.report.items += 0 if number else int(compared.sum())
                wrong = compared & apart(found, exact, scale, share)
                if bool(wrong.any()):
                    at = tuple(wrong.nonzero()[0].tolist())
                    words = [
                        f"x of shape {shape} along 1",
                        *(name for name in options if options[name] is not None and options[name] is not False),
                    ]
                    words += sorted(f"strategy {name}" for name in names)
                    place = f"result {number} at {at} is {found[at].item()}, by PyTorch {exact[at].item()}"
                    yield Finding("agreement with PyTorch", _words(dtypes), f"{', '.join(words)}: {place}")


def trace(op: FieldOperator, dtypes: InputDtypes) -> Fusion:
    """Return the fusion of a scan of tensors of these dtypes, or raise UnsupportedRequest."""
    return trace_fusion(None, None, op, tuple((each, False) for each in dtypes), False, None)


def _widen(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which rounding is no broken law, and results are compared: float64 for floats."""
    return torch.float64 if dtype.is_floating_point else dtype


def _words(dtypes: InputDtypes) -> str:
    return ", ".join(dict.fromkeys(str(each).removeprefix("torch.") for each in dtypes))


def _items(tensors: State, places: list[int]) -> str:
    """Items of each tensor in words: one, or those of a range."""
    found = ([each[place].item() for place in places] for each in tensors)
    return ", ".join(str(each[0] if len(each) == 1 else each) for each in found)


def size_of(values: torch.Tensor) -> torch.Tensor:
    """Return magnitudes, at least 1; those of NaN and infinities as 1."""
    sizes = values.to(torch.float64).abs()
    return torch.where(sizes.isfinite(), sizes, 1.0).clamp(min=1.0)


def apart(y: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor, share: float) -> torch.Tensor:
    """Return where integers differ, and where floats differ by more than ``share`` of ``scale``."""
    if not y.is_floating_point():
        return y != expected
    y = y.to(expected.dtype)
    same = (y == expected) | (y.isnan() & expected.isnan())
    return ~(same | (((y - expected).abs() <= share * scale) & y.isfinite() & expected.isfinite()))


def check_operator(
    op: FieldOperator,
    *,
    dtypes: Iterable[torch.dtype | Sequence[torch.dtype]] | None = None,
    lengths: Iterable[int] = LENGTHS,
    samples: Sequence[float] | None = None,
    seed: int = 1,
) -> OperatorReport:
    """Test whether ``op`` is associative, has its identity, and has right kernels. Needs g++ and no GPU.

    First the laws are tested by PyTorch, field by field, on random states a, b, c of one to three items each:

        combine(identity, a) = a = combine(a, identity)
        combine(combine(a, b), c) = combine(a, combine(b, c))

    Integers and bits must be equal; items of floating dtypes are taken in float64, with a tolerance for rounding. Then
    a kernel of each strategy that the lengths reach is run in the emulator, forward or reverse, inclusive or exclusive,
    masked or not, and compared with PyTorch's operators: integers exactly, floats with float64, within rounding of the
    largest result so far, as long as results stay below the square root of the largest number of the dtype.

    The check ends at the first mistake, with the shortest example that it has found. It takes some 10 s on one core,
    logs its phases at INFO and prints them on a terminal.

    Args:
        op: the operator, as ``scanops.operator`` makes it.
        dtypes: the dtypes of the scanned tensors that laws and kernels are tested in, one after the other: each a dtype
            of all tensors, or a sequence of one for each tensor. By default those of the fields, where they are
            declared and there is no ``lift``; else the first of float64, int64, int32 and bool that the operator takes.
        lengths: lengths of scanned lines, 1 to 2^20; the default reaches every strategy.
        samples: the numbers to draw from, each for the dtypes that hold it. By default random ones, for integers of at
            most 16 bits. Pass those for which the operator is lawful if it is not for all: sums beside ``maximum``
            are lawful for integers only as long as none wraps around.
        seed: for the drawn elements and the order of emulated threads.

    Returns:
        A report with ``.ok`` and ``.findings``; print it to read them. A broken law raises nothing.

    Raises:
        UnsupportedRequest: an operator that does not take the dtypes, or an invalid option.

    Example:
        >>> import torch, scanops
        >>> latches = scanops.operator(  # 32 bits, each set or reset: an item keeps some and sets others
        ...     fields=("keep", "set"),
        ...     identity=(-1, 0),
        ...     combine=lambda older, newer: (older.keep & newer.keep, (older.set & newer.keep) | newer.set),
        ...     project=lambda state: state.set,
        ... )
        >>> print(scanops.check_operator(latches, dtypes=[torch.int32], lengths=(6, 64)))  # doctest: +SKIP
        operator: nothing wrong in 7200 laws, 4 scans of 2660 items (columns, warp)
    """
    lengths, chosen = tuple(lengths), None if dtypes is None else tuple(dtypes)
    _check_arguments(op, chosen, lengths, samples)
    if chosen is None:
        asked: list[InputDtypes] = [_choose_dtypes(op)]
    else:
        asked = [(each,) * op.inputs if isinstance(each, torch.dtype) else tuple(each) for each in chosen]
    for each in asked:
        trace(op, each)  # which raises for what the operator does not take
    check = Check(op, samples, seed, OperatorReport(op.name))
    check.report.findings = tuple(itertools.islice(check.mistakes(asked, sorted(set(lengths))), 1))
    return check.report


def _choose_dtypes(op: FieldOperator) -> InputDtypes:
    """Return the dtypes of tensors to test an operator with. Raises UnsupportedRequest where it takes none of them."""
    tried: list[InputDtypes] = [(dtype,) * op.inputs for dtype in _DEFAULTS]
    if op.lift is None and op.step is None:
        tried.insert(0, tuple(dtype or torch.float64 for dtype in op.dtypes.values()))
    refusals = []
    for dtypes in tried:
        try:
            trace(op, dtypes)
        except UnsupportedRequest as problem:
            refusals.append(problem)
        else:
            return dtypes
    raise refusals[0]


def _check_arguments(op: object, dtypes: Any, lengths: tuple[Any, ...], samples: Any) -> None:
    """Raise UnsupportedRequest for an invalid option."""

    def fit(each: Any) -> bool:
        if not isinstance(each, tuple | list) or not isinstance(op, FieldOperator):
            return isinstance(each, torch.dtype)
        return len(each) == op.inputs and all(isinstance(dtype, torch.dtype) for dtype in each)

    numbers = samples is None or (len(samples) and all(isinstance(item, int | float) for item in samples))
    for name, value, valid, allowed in (
        ("op", op, isinstance(op, FieldOperator), "an operator that scanops.operator makes"),
        ("dtypes", dtypes, dtypes is None or all(map(fit, dtypes)), "dtypes, or sequences of one for each tensor"),
        ("lengths", lengths, all(type(n) is int and 1 <= n <= LONGEST for n in lengths), f"integers, 1 to {LONGEST}"),
        ("samples", samples, numbers, "a sequence of at least one number, or None"),
    ):
        if not valid:
            hint = f"see help(scanops.check_operator), or leave {name} out"
            raise UnsupportedRequest(f"check_operator: invalid {name}", allowed=allowed, value=repr(value), hint=hint)
