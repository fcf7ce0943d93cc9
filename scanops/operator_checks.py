"""``check_operator``: a random test of an operator's laws, and of its emulated kernels against its reference."""

from __future__ import annotations

import cmath
import ctypes
import itertools
import logging
import math
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scanops.api import scan
from scanops.build_request import CPU, BuildRequest, expressions, plan_for
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import choose_variant
from scanops.codegen.operators import OPERATORS, Operator, operator_named, register_operator
from scanops.codegen.source import environment, link, render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Plan
from scanops.emulator import emulate
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.fallback import reference
from scanops.fallback.fused import evaluate
from scanops.forks import FORK_LOCK
from scanops.fusion.functions import trace_fusion
from scanops.fusion.operators import FieldOperator
from scanops.requests.request import make_request
from scanops.runtime.kernels import Kernel
from scanops.store import Store
from scanops.store.entry import Entry
from scanops.store.library import Library, load

_LOG = logging.getLogger("scanops")
LENGTHS = (6, 64, 127, 601, 2047, 40003, 131076)  # together they reach every strategy
LONGEST = 2**20  # elements of a line: an emulated element takes about a microsecond
COLUMNS = 33  # neighbouring lines of a strided scan; odd, so that accesses are ragged
TRIPLES = 600  # random triples of ranges of 1 to 3 elements, for the laws
GREAT = 2**24  # float32 does not hold every integer beyond it

# By kind: the dtype in which laws are tested, wide enough that rounding is no broken law, and the dtype of scans.
LAW_DTYPES = {"float": torch.float64, "int": torch.int64, "bool": torch.bool, "complex": torch.complex128}
SCAN_DTYPES = {"float": torch.float32, "int": torch.int32, "bool": torch.bool, "complex": torch.complex64}
# Complex infinities are left out: multiplied by 1 they are NaN. Integers get their dtype's bounds in addition.
SAMPLES: dict[str, tuple[complex, ...]] = {
    "float": (1.0, 0.0, -1.0, 2.0, 0.5, -1.5, 3.0, 0.1, -0.0, math.nan, math.inf, -math.inf),
    "int": (1, 0, -1, 2, 3, -5, 7, 100),
    "bool": (0, 1),
    "complex": (1, 0, -1, 1j, 2, -0.5j, 1 + 1j, 0.5 - 1.5j, -1 + 0.1j, complex(math.nan, math.nan)),
}
# By their numbers in the emulator's laws.h: the law, its operands and its two sides.
LAWS = (
    ("identity on the left", "a", "combine(identity, a)", "a"),
    ("identity on the right", "a", "combine(a, identity)", "a"),
    ("associativity", "abc", "combine(combine(a, b), c)", "combine(a, combine(b, c))"),
    ("commutativity, which the operator claims", "ab", "combine(a, b)", "combine(b, a)"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake in an operator: the law that does not hold, for which dtype, with values that show it."""

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
    scans: int = 0  # scans that were compared with the reference
    items: int = 0  # elements of these scans
    strategies: tuple[str, ...] = ()  # strategies of the kernels that ran

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with the operator, as far as was tested."""
        return not self.findings

    def __str__(self) -> str:
        done = f"{self.laws} laws, {self.scans} scans of {self.items} items ({', '.join(self.strategies)})"
        return "\n".join(
            [f"{self.operator}: {len(self.findings) or 'nothing'} wrong in {done}", *map(str, self.findings)]
        )


@dataclass(slots=True)
class Check:
    """One run of ``check_operator``: what it builds with, and what it has counted."""

    op: Operator
    row: Operator  # the same under the name of this run
    store: Store
    samples: Sequence[complex] | None
    seed: int
    report: OperatorReport

    def mistakes(self, dtypes: Iterable[torch.dtype] | None, lengths: Sequence[int]) -> Iterator[Finding]:
        """Yield what is wrong: first in the laws, then in indices, then in scans."""
        for kind in self.op.kinds:
            self._say(f"laws in {LAW_DTYPES[kind]}")
            try:
                yield from self._broken_laws(LAW_DTYPES[kind])
                yield from self._inexact_indices(SCAN_DTYPES[kind])
            except BuildFailure as failure:
                if kind == self.op.kinds[0]:
                    raise
                said = [line.split("error: ")[1] for line in str(failure.value).splitlines() if "error: " in line]
                example = f"{said[0] if said else failure}; if {kind} is none of its kinds, leave it out of kinds="
                yield _finding("C++ for each of its kinds", LAW_DTYPES[kind], example)
        for number, dtype in enumerate(dtypes or [SCAN_DTYPES[kind] for kind in self.op.kinds]):
            self._say(f"scans of {dtype}")
            # Further dtypes run the same expressions: short lengths show what a type changes.
            yield from self._wrong_scans(dtype, lengths[:3] if number else lengths)

    def _say(self, phase: str) -> None:
        _LOG.info("check_operator %s: %s", self.op.name, phase)
        if sys.stderr.isatty():
            print(f"check_operator {self.op.name}: {phase}", file=sys.stderr, flush=True)

    def _build(self, name: str, plan: Plan, source: str) -> Entry:
        written, launch = expressions(self.op), plan.launch._asdict()
        request = BuildRequest(name=name, source=source, target=CPU, written=written, launch=launch)
        return self.store.get_or_build(request)

    def _draw(self, dtype: torch.dtype, *, finite: bool = False) -> torch.Tensor:
        """Return the samples that a dtype holds: all of them, or the finite ones."""
        row = dtype_named(dtype)
        bounds = (row.lowest, row.highest) if row.kind == "int" else ()
        found: list[Any] = [*SAMPLES[row.kind], *bounds] if self.samples is None else list(self.samples)
        if row.kind != "complex":
            found = [each.real for each in found if not each.imag]
        if row.kind in ("int", "bool"):
            found = [int(each) for each in found if math.isfinite(each) and row.lowest <= each <= row.highest]
        found = [each for each in found if cmath.isfinite(each) or not finite]
        return torch.tensor(found or [0, 1], dtype=dtype)

    def _sides(
        self, items: torch.Tensor, begins: torch.Tensor, laws: Iterable[int] = (0,), base: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield both sides of each law, and the fields of each first state, by laws.j2 for the dtype of ``items``."""
        word, tests = str(items.dtype), len(begins) // 3
        out_dtype = "" if self.row.gives == "index" else word
        gate = word if self.row.gated else None  # the gate of an element is the element itself
        spec = ScanSpec(op=self.row.name, dtype=word, gate=gate, out_dtype=out_dtype, length=4)
        plan = plan_for(KernelKey(spec, CPU))
        text = link(environment().get_template("laws.j2").render(plan=plan))
        library = load(self._build(f"laws-{spec.input.tag}", plan, text))
        assert isinstance(library, Library)
        for law in laws:
            left, right = (torch.empty(tests, dtype=getattr(torch, spec.out_dtype)) for _ in range(2))
            fields = torch.empty(tests, len(self.row.fields), dtype=torch.float64)
            pointers = (each.data_ptr() for each in (items, begins, left, right, fields))
            parameter = (ctypes.c_longlong * 8)(*pointers, tests, law, base)
            given = ctypes.byref(ctypes.c_void_p(ctypes.addressof(parameter)))
            library.scanops_launch(None, 1, 1, 1, 32, 1, 1, 0, None, given, None)
            yield left, right, fields

    def _broken_laws(self, dtype: torch.dtype) -> Iterator[Finding]:
        """Yield the counterexamples to each law, the shortest first."""
        generator, drawn = torch.Generator().manual_seed(self.seed), self._draw(dtype)
        # All triples of the first few samples, then random triples of ranges.
        groups = [[[item] for item in group] for group in itertools.product(range(min(len(drawn), 13)), repeat=3)]
        sizes = torch.randint(1, 4, (TRIPLES, 3), generator=generator).tolist()
        picks = torch.randint(len(drawn), (TRIPLES, 9), generator=generator).tolist()
        groups += [[row[:a], row[3 : 3 + b], row[6 : 6 + c]] for (a, b, c), row in zip(sizes, picks, strict=True)]
        groups.sort(key=lambda group: sum(map(len, group)))
        items = drawn[[index for group in groups for part in group for index in part]]
        lengths = (len(part) for group in groups for part in group)
        begins = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        laws = LAWS if self.row.commutative else LAWS[:3]
        for (law, operands, *words), (left, right, _) in zip(laws, self._sides(items, begins, range(4)), strict=False):
            self.report.laws += len(groups)
            scale = torch.maximum(size_of(left), size_of(right)).clamp(min=float(size_of(items).max()))
            for test in apart(left, right, scale, 1e-9).nonzero().flatten().tolist():
                values = [[drawn[index].item() for index in part] for part in groups[test]]
                shown = [str(part[0]) if len(part) == 1 else f"the elements {part}" for part in values]
                where = ", ".join(f"{letter} = {part}" for letter, part in zip(operands, shown, strict=False))
                example = f"{words[0]} = {left[test].item()}, but {words[1]} = {right[test].item()}, for {where}"
                yield _finding(law, dtype, example)

    def _inexact_indices(self, dtype: torch.dtype) -> Iterator[Finding]:
        """Yield each field that holds the index of an element, yet not exactly beyond 2^24: ``lift`` is run there."""
        if not self.row.places_items or dtype.is_complex:
            return
        drawn = self._draw(dtype, finite=True)
        items = drawn[drawn != 1].repeat_interleave(6)  # two tests for each sample, of three elements each
        begins = torch.arange(len(items) + 1, dtype=torch.int32)
        holds, exact = (
            (fields == begins[:-1:3].double().unsqueeze(1) + base).reshape(len(items) // 6, 2, -1).all(1)
            for base in (3, GREAT + 1)
            for _, _, fields in self._sides(items, begins, base=base)
        )
        for number, (name, kind) in enumerate(zip(self.row.fields, self.row.field_types, strict=True)):
            if kind == "value" and bool((holds & ~exact)[:, number].any()):
                example = f"the field {name!r} does not hold the index {GREAT + 1}; declare it with types: 'index'"
                yield _finding("exact indices", dtype, example)

    def _wrong_scans(self, dtype: torch.dtype, lengths: Sequence[int]) -> Iterator[Finding]:
        """Yield the scans that differ from the reference, of each strategy the first in the order of lengths."""
        generator, seen = torch.Generator().manual_seed(self.seed), set()
        turns = itertools.cycle(itertools.product((False, True), repeat=3))
        for x, dim in self._inputs(dtype, lengths, generator):
            masked, reverse, exclusive = next(turns)
            mask = torch.rand(x.shape, generator=generator) < 0.7 if masked else None
            gate = x.flip(dim) if self.row.gated else None
            options: dict[str, Any] = {"mask": mask, "gate": gate, "reverse": reverse, "exclusive": exclusive}
            with emulate(seed=self.seed) as emulation:
                request = make_request(x, self.row.name, dim, **options)
                spec = request.spec(torch.empty(x.shape, dtype=request.dtype))
                lines = request.line_shape.numel()
                key = KernelKey(spec, CPU, choose_variant(spec, lines, emulation.multiprocessors))
                plan = plan_for(key)
                if plan.strategy in seen:
                    continue
                seen.add(plan.strategy)
                self._say(f"{plan.strategy}, {tuple(x.shape)} along {dim}")
                kernel = Kernel(key, self._build(f"check-{plan.strategy}", plan, render(plan)))
                y = kernel(x, dim, mask=mask, gate=gate)
            self.report.strategies = tuple(sorted({*self.report.strategies, plan.strategy}))
            assert isinstance(y, torch.Tensor)
            if wrong := self._difference(y, x, dim, options):
                words = [word for word in ("mask", "reverse", "exclusive") if options[word] not in (None, False)]
                what = ", ".join([f"x of shape {tuple(x.shape)} along {dim}", *words, f"strategy {plan.strategy}"])
                yield _finding("agreement with the reference", dtype, f"{what}: {wrong}")

    def _inputs(
        self, dtype: torch.dtype, lengths: Sequence[int], generator: torch.Generator
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """Yield rows, columns and transposed columns of each length; one element in 50 of the latter may be NaN."""

        def draw(samples: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
            return samples[torch.randint(len(samples), shape, generator=generator)]

        finite, any_ = self._draw(dtype, finite=True), self._draw(dtype)
        for length in lengths:
            yield draw(finite, (5 if length < 2**16 else 2, length)), 1  # many rows, and few
            for shape in ((1, length, COLUMNS), (length, COLUMNS + 7)) if length * COLUMNS <= 2**17 else ():
                rare = torch.rand(shape, generator=generator) < 0.02
                x = torch.where(rare, draw(any_, shape), draw(finite, shape))
                yield x if len(shape) == 3 else x.t(), 1

    def _difference(self, y: torch.Tensor, x: torch.Tensor, dim: int, options: dict[str, Any]) -> str:
        """Return the first element that differs from the reference, in words; empty if none does."""
        wide = torch.complex128 if y.is_complex() else torch.float64 if y.is_floating_point() else y.dtype
        terms = x if self.row.gives == "index" else x.to(y.dtype)
        try:
            expected = reference.scan(terms, self.row.name, dim, dtype=wide, **options)
        except Exception as problem:  # raised by the operator's own step or output
            words = str(problem).partition("\n")[0]
            return f"the reference raised {type(problem).__name__}: {words} (it is given tensors: use torch.where)"
        compared, scale, share = torch.ones_like(y, dtype=torch.bool), size_of(expected), 0.0
        if wide != y.dtype or y.is_floating_point() or y.is_complex():  # as long as nothing overflows
            ordered = scale.flip(dim) if options["reverse"] else scale
            scale = ordered.cummax(dim).values
            scale = scale.flip(dim) if options["reverse"] else scale
            accumulator = torch.float32 if y.dtype in (torch.float16, torch.bfloat16) else y.dtype
            compared = scale < min(math.sqrt(torch.finfo(accumulator).max), torch.finfo(y.dtype).max / 2)
            share = 8 * torch.finfo(y.dtype).eps + (1e-9 if y.dtype == wide else 1e-3)
        wrong = compared & apart(y, expected, scale, share)
        self.report.scans += 1
        self.report.items += int(compared.sum())
        if not bool(wrong.any()):
            return ""
        at = tuple(wrong.nonzero()[0].tolist())
        place = f"y[{', '.join(map(str, at))}] = {y[at].item()}, reference {expected[at].item()}"
        return f"{place}; {int(wrong.sum())} of {y.numel()}"


def _finding(law: str, dtype: torch.dtype, example: str) -> Finding:
    return Finding(law, str(dtype).removeprefix("torch."), example)


def size_of(values: torch.Tensor) -> torch.Tensor:
    """Return magnitudes, at least 1; those of NaN and infinities as 1."""
    sizes = values.to(torch.complex128).abs()
    return torch.where(sizes.isfinite(), sizes, 1.0).clamp(min=1.0)


def apart(y: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor, share: float) -> torch.Tensor:
    """Return where integers differ, and where floats and complex numbers differ by more than ``share`` of ``scale``."""
    if not (y.is_floating_point() or y.is_complex()):
        return y != expected
    y = y.to(expected.dtype)
    same = (y == expected) | (y.isnan() & expected.isnan())
    return ~(same | (((y - expected).abs() <= share * scale) & y.isfinite() & expected.isfinite()))


def check_operator(
    op: Operator | FieldOperator | str,
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    lengths: Iterable[int] = LENGTHS,
    samples: Sequence[complex] | None = None,
    seed: int = 1,
) -> OperatorReport:
    """Test whether ``op`` is associative, has its identity and agrees with its reference. Needs g++ and no GPU.

    The operator's C++ is compiled by g++ and run in the emulator. First its laws are tested, on states a, b, c of one
    to three elements each, for each of the operator's kinds:

        combine(identity, a) = a = combine(a, identity)
        combine(combine(a, b), c) = combine(a, combine(b, c))
        combine(a, b) = combine(b, a), if ``op.commutative``

    Integers must be equal. Floats are tested in float64 and complex numbers in complex128, with a tolerance for
    rounding. If ``lift`` reads ``i``, fields that hold an index must hold it exactly beyond 2^24. Then a kernel of each
    strategy that the lengths reach, forward or reverse, inclusive or exclusive, masked or not, is compared with
    ``step``: integers exactly, floats within rounding of the largest result so far, as long as results stay below
    the square root of the largest accumulator value.

    Of an operator of ``scanops.operator`` the laws are tested in float64 by PyTorch, field by field, and its kernels
    are compared with the same in float64.

    The check ends at the first mistake, with the shortest example that it has found. It takes some 10 s on one core,
    logs its phases at INFO and prints them on a terminal. It registers nothing, so that the name stays free, and builds
    its kernels in a temporary store.

    Args:
        op: the operator, or the name of one.
        dtypes: dtypes of scanned inputs; by default float32, int32, bool and complex64, of those the legal ones.
        lengths: lengths of scanned lines, 1 to 2^20; the default reaches every strategy.
        samples: the elements to draw from, each for the dtypes that hold it. By default small numbers, NaN, real
            infinities and the bounds of integers. Pass finite ones for an operator that is not lawful for others:
            inf * 0 makes even a matrix product depend on the order.
        seed: for the drawn elements and the order of emulated threads.

    Returns:
        A report with ``.ok`` and ``.findings``; print it to read them. A broken law raises nothing.

    Raises:
        UnsupportedRequest: a dtype that is not legal for the operator, or an invalid option.
        BuildFailure: C++ that does not compile for the first of the operator's kinds; the message has the expressions
            and the compiler's output. C++ that does not compile for another kind is a finding.

    Example:
        >>> print(check_operator(op))  # doctest: +SKIP
        last_valid: nothing wrong in 6984 laws, 7 scans of 492703 items (block, columns, persistent, split, ...)
    """
    op = operator_named(op) if isinstance(op, str) else op
    lengths = _check_arguments(op, lengths, samples)
    if isinstance(op, FieldOperator):
        report = OperatorReport(op.name)
        report.findings = tuple(itertools.islice(_of_fields(op, dtypes, lengths, samples, seed, report), 1))
        return report
    name = f"{op.name[:39]}_{secrets.token_hex(4)}"  # of this check alone, so that checks may run in threads
    row = register_operator(replace(op, name=name, indices=""))
    try:
        with FORK_LOCK:  # tempfile has a lock
            temporary = tempfile.TemporaryDirectory(prefix="scanops-check-")
        with temporary as folder:
            check = Check(op, row, Store(Path(folder)), samples, seed, OperatorReport(op.name))
            check.report.findings = tuple(itertools.islice(check.mistakes(dtypes, lengths), 1))
    finally:
        del OPERATORS[name]
    return check.report


def _of_fields(
    op: FieldOperator,
    dtypes: Iterable[torch.dtype] | None,
    lengths: Sequence[int],
    samples: Sequence[complex] | None,
    seed: int,
    report: OperatorReport,
) -> Iterator[Finding]:
    """Yield what is wrong with an operator of expressions: first in its laws, then in scans."""
    count, rest = op.inputs, torch.Generator().manual_seed(seed)
    finite = [float(each.real) for each in samples or SAMPLES["float"] if cmath.isfinite(each)]
    known = torch.tensor(finite, dtype=torch.float64)

    def drawn(*shape: int) -> list[torch.Tensor]:
        if samples is None and len(shape) > 1:  # products of round numbers vanish, but for the order of rounding
            return [torch.rand(shape, generator=rest, dtype=torch.float64) * 3 - 1.5 for _ in range(count)]
        return [known[torch.randint(len(known), shape, generator=rest)] for _ in range(count)]

    fusion = trace_fusion(None, None, op, ((torch.float64, False),) * count, False, None, None)
    items = drawn(3 * TRIPLES)
    states = evaluate(fusion.nodes, fusion.elements, {"operand": items}, {})
    a, b, c = zip(*(each.expand(3 * TRIPLES).chunk(3) for each in states), strict=True)
    nothing = tuple(torch.full_like(each, field.identity) for each, field in zip(a, fusion.fields, strict=True))

    def combine(older: Any, newer: Any) -> Any:
        found = evaluate(fusion.nodes, fusion.combine, {"older": older, "newer": newer}, {})
        return tuple(each.expand(TRIPLES) for each in found)

    sides = (combine(nothing, a), a), (combine(a, nothing), a), (combine(combine(a, b), c), combine(a, combine(b, c)))
    for (law, operands, *words), pair in zip(LAWS, sides, strict=False):
        report.laws += TRIPLES
        for field, left, right in zip(fusion.fields, *pair, strict=True):
            for test in apart(left, right, size_of(left).maximum(size_of(right)), 1e-9).nonzero().flatten().tolist():
                shown = (
                    f"{letter} of {', '.join(str(each[at * TRIPLES + test].item()) for each in items)}"
                    for at, letter in enumerate(operands)
                )
                values = f"{words[0]} has {left[test].item()}, but {words[1]} {right[test].item()}"
                yield Finding(law, "float64", f"in the field {field.name!r}, {values}, for {'; '.join(shown)}")
    turns = itertools.cycle(itertools.product((False, True), repeat=2))
    shapes = ((5 if length < 2**16 else 2, length) for length in lengths)
    for shape in (each for n in shapes for each in (n, (1, n[1], COLUMNS)) if each[-1] * each[1] <= 2**17):
        reverse, exclusive = next(turns)
        x = drawn(*shape)
        for dtype in dtypes or (torch.float64,):
            given = [each.to(dtype) for each in x]
            with emulate(seed=seed):
                y = scan(given, op, 1, reverse=reverse, exclusive=exclusive)
            wide = [each.double() for each in given]
            wanted = scan(wide, op, 1, reverse=reverse, exclusive=exclusive)
            made, exact = (torch.stack(each if isinstance(each, tuple) else (each,)) for each in (y, wanted))
            scale = size_of(exact).amax(0)
            scale = (scale.flip(1).cummax(1).values.flip(1) if reverse else scale.cummax(1).values)[None]
            kept = scale < torch.finfo(dtype).max ** 0.5
            report.scans, report.items = report.scans + 1, report.items + int(kept.sum())
            wrong = kept & apart(made, exact, scale, 1e-3 + 8 * torch.finfo(dtype).eps)
            if bool(wrong.any()):
                at = tuple(wrong.nonzero()[0].tolist())
                found = f"result {at[0]} at {at[1:]} is {made[at].item()}, in float64 {exact[at].item()}"
                what = f"x of shape {shape} along 1: {found}"
                yield Finding("agreement with float64", str(dtype).removeprefix("torch."), what)


def _check_arguments(op: object, lengths: Iterable[int], samples: Sequence[complex] | None) -> tuple[int, ...]:
    """Return the lengths in rising order. Raises UnsupportedRequest for an invalid option."""
    lengths = tuple(lengths)
    numbers = samples is None or (len(samples) and all(isinstance(item, int | float | complex) for item in samples))
    for name, value, valid, allowed in (
        ("op", op, isinstance(op, Operator | FieldOperator), "a scanops.Operator"),
        ("lengths", lengths, all(type(n) is int and 1 <= n <= LONGEST for n in lengths), f"integers, 1 to {LONGEST}"),
        ("samples", samples, numbers, "a sequence of at least one number, or None"),
    ):
        if not valid:
            hint = f"see help(scanops.check_operator), or leave {name} out"
            raise UnsupportedRequest(f"check_operator: invalid {name}", allowed=allowed, value=repr(value), hint=hint)
    return tuple(sorted(set(lengths)))
