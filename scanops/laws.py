"""``check_operator``: tests an operator's laws and compares it with its reference, in the emulator."""

from __future__ import annotations

import cmath
import ctypes
import itertools
import logging
import math
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from scanops.artifact import CPU, BuildRequest
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import OPERATORS, Operator, register_operator
from scanops.codegen.plan import make_plan
from scanops.codegen.source import environment, render
from scanops.codegen.spec import ScanSpec
from scanops.emulator import emulate
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.fallback import reference
from scanops.requests.request import make_request
from scanops.runtime.results import run_kernel
from scanops.store.identity import expressions
from scanops.store.library import load
from scanops.store.store import Store
from scanops.tuning.files import planned

_LOG = logging.getLogger("scanops")
LENGTHS = (1, 6, 64, 127, 601, 2047, 40003, 131076)  # together they reach every strategy
COLUMNS = 33  # neighbouring lines of a strided scan; odd, so that accesses are ragged
SMALL = 2**17  # elements of a tensor of columns: an emulated element takes about a microsecond
LONGEST = SMALL * 8  # elements of a line
RARE = 50  # one element in so many is NaN or infinite, where samples have such
TRIPLES = 600  # random triples of ranges of 1 to 3 elements, for the laws
TOLERANCE = 1e-9  # relative, for laws in float64
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
# By their numbers in laws.j2: the law, its operands and its two sides.
LAWS = (
    ("identity on the left", "a", "combine(identity, a)", "a"),
    ("identity on the right", "a", "combine(a, identity)", "a"),
    ("associativity", "abc", "combine(combine(a, b), c)", "combine(a, combine(b, c))"),
    ("commutativity, which the operator claims", "ab", "combine(a, b)", "combine(b, a)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One mistake in an operator: the law that does not hold, for which dtype, with values that show it."""

    law: str
    dtype: str
    example: str

    def __str__(self) -> str:
        return f"{self.law} ({self.dtype}): {self.example}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorReport:
    """The result of ``check_operator``: its findings, and how much was compared."""

    operator: str  # its name
    findings: tuple[Finding, ...]
    laws: int  # pairs of states that were compared
    scans: int  # scans that were compared with the reference
    items: int  # elements of these scans
    strategies: tuple[str, ...]  # strategies of the kernels that ran

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with the operator, as far as was tested."""
        return not self.findings

    def __str__(self) -> str:
        done = f"{self.laws} laws, {self.scans} scans of {self.items} items ({', '.join(self.strategies)})"
        if self.ok:
            return f"{self.operator}: nothing wrong in {done}"
        return "\n".join([f"{self.operator}: {len(self.findings)} found in {done}", *map(str, self.findings)])


def check_operator(
    op: Operator,
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    lengths: Iterable[int] = LENGTHS,
    samples: Sequence[complex] | None = None,
    seed: int = 1,
    verbose: bool | None = None,
) -> OperatorReport:
    """Test whether ``op`` is associative, has its identity and agrees with its reference. Needs g++ and no GPU.

    The operator's C++ is compiled by g++ and run in the emulator. First its laws are tested, on states a, b, c of one
    to three elements each, for each of the operator's kinds:

        combine(identity, a) = a = combine(a, identity)
        combine(combine(a, b), c) = combine(a, combine(b, c))
        combine(a, b) = combine(b, a), if ``op.commutative``

    Integers must be equal. Floats are tested in float64 and complex numbers in complex128, with a tolerance for
    rounding. If ``lift`` reads ``i``, fields that hold an index must hold it exactly beyond 2^24. Then the kernels'
    scans, short lengths first, forward and reverse, inclusive and exclusive, masked or not, are compared with
    ``step``: integers exactly, floats within rounding of the largest result so far, as long as results stay below
    the square root of the largest accumulator value.

    The check ends at the first mistake, with the shortest example that it has found. It takes some 10 s on one core,
    registers nothing, so that the name stays free, and builds its kernels in a temporary store.

    Args:
        op: the operator.
        dtypes: dtypes of scanned inputs; by default float32, int32, bool and complex64, of those the legal ones.
        lengths: lengths of scanned lines, 1 to 2^20; the default reaches every strategy.
        samples: the elements to draw from, each for the dtypes that hold it. By default small numbers, NaN, real
            infinities and the bounds of integers. Pass finite ones for an operator that is not lawful for others:
            inf * 0 makes even a matrix product depend on the order.
        seed: for the drawn elements and the order of emulated threads.
        verbose: print a line per phase to stderr; by default if stderr is a terminal. Phases are also logged, at INFO.

    Returns:
        A report with ``.ok`` and ``.findings``; print it to read them. A broken law raises nothing.

    Raises:
        UnsupportedRequest: a dtype that is not legal for the operator, or an invalid option.
        BuildFailure: C++ that does not compile for the first of the operator's kinds; the message has the expressions
            and the compiler's output. C++ that does not compile for another kind is a finding.

    Example:
        >>> print(check_operator(op))  # doctest: +SKIP
        last_valid: nothing wrong in 5400 laws, 18 scans of 947862 items (block, columns, split, staged, warp, wave)
    """
    lengths = _checked(op, lengths, samples)
    name = f"{op.name[:39]}_{secrets.token_hex(4)}"  # of this check alone, so that checks may run in threads
    row = register_operator(replace(op, name=name, indices=""))
    try:
        with tempfile.TemporaryDirectory(prefix="scanops-check-") as folder:
            check = _Check(
                op, row, Store(Path(folder)), samples, seed, sys.stderr.isatty() if verbose is None else verbose
            )
            check.run(dtypes, lengths)
    finally:
        del OPERATORS[name]
    return OperatorReport(
        operator=op.name,
        findings=tuple(check.findings),
        laws=check.laws,
        scans=check.scans,
        items=check.items,
        strategies=tuple(sorted(check.strategies)),
    )


@dataclass(slots=True)
class _Loaded:
    """A built kernel, as ``run_kernel`` takes it."""

    spec: ScanSpec
    library: ctypes.CDLL
    source_path: Path
    target: str = CPU


class _LawArguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input", "begins", "left", "right", "fields")),
        *((name, ctypes.c_longlong) for name in ("tests", "law", "base")),
    )


@dataclass(slots=True)
class _Check:
    """One run of ``check_operator``: what it builds with, what it has found and counted."""

    given: Operator
    row: Operator  # the same under a name of this run
    store: Store
    samples: Sequence[complex] | None
    seed: int
    verbose: bool
    findings: list[Finding] = field(default_factory=list)
    laws: int = 0
    scans: int = 0
    items: int = 0
    strategies: set[str] = field(default_factory=set)

    def run(self, dtypes: Iterable[torch.dtype] | None, lengths: Sequence[int]) -> None:
        """Test laws, then indices, then scans, up to the first finding."""
        compiled: list[str] = []
        for kind in self.given.kinds:
            self._say(f"laws in {_named(LAW_DTYPES[kind])}")
            try:
                found = self._broken_law(LAW_DTYPES[kind]) or self._inexact_index(SCAN_DTYPES[kind])
            except BuildFailure as failure:
                if not compiled:
                    raise
                self.findings.append(_not_compiled(kind, failure))
                continue
            compiled.append(kind)
            if found:
                self.findings.append(found)
                return
        scanned = [SCAN_DTYPES[kind] for kind in compiled] if dtypes is None else list(dtypes)
        for number, dtype in enumerate(scanned):
            # Further dtypes run the same expressions: two lengths show what a type changes.
            few = tuple(length for length in lengths if length <= LENGTHS[2]) if lengths == LENGTHS else lengths
            found = self._wrong_scan(dtype, few if number else lengths, once=lengths == LENGTHS)
            if found:
                self.findings.append(found)
                return

    def _say(self, phase: str) -> None:
        _LOG.info("check_operator %s: %s", self.given.name, phase)
        if self.verbose:
            print(f"check_operator {self.given.name}: {phase}", file=sys.stderr, flush=True)

    def _drawn(self, dtype: torch.dtype) -> list[complex]:
        """The samples that a dtype holds."""
        row, samples = dtype_named(dtype), self.samples
        if samples is None:
            samples = (*SAMPLES[row.kind], *((row.lowest, row.highest) if row.kind == "int" else ()))
        if row.kind == "complex":
            return [complex(item) for item in samples]
        real = [item.real for item in samples if not item.imag]
        if row.kind == "float":
            return [float(item) for item in real] or [0.0, 1.0]
        return [int(item) for item in real if math.isfinite(item) and row.lowest <= item <= row.highest] or [0, 1]

    # ---- laws

    def _law_tests(self, dtype: torch.dtype) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Compile laws.j2 for a dtype: a function that returns both sides of a law, and the first states' fields."""
        word = str(dtype)
        out_dtype = "" if self.row.gives == "index" else word
        gate = word if self.row.gated else None  # the gate of an element is the element itself
        spec = ScanSpec(op=self.row.name, dtype=word, gate=gate, out_dtype=out_dtype, length=4)
        text = environment().get_template("laws.j2").render(plan=make_plan(spec, planned(CPU)))
        request = BuildRequest(name=f"laws-{spec.input.tag}", source=text, target=CPU, written=expressions(self.given))
        library = load(self.store.get_or_build(request))

        def run(
            items: torch.Tensor, begins: torch.Tensor, law: int = 0, base: int = 0
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            tests = len(begins) // 3
            left, right = (torch.empty(tests, dtype=getattr(torch, spec.out_dtype)) for _ in range(2))
            fields = torch.empty(tests, len(self.row.fields), dtype=torch.float64)
            pointers = (each.data_ptr() for each in (items, begins, left, right, fields))
            library.scanops_launch(ctypes.byref(_LawArguments(*pointers, tests, law, base)), None)
            return left, right, fields

        return run

    def _broken_law(self, dtype: torch.dtype) -> Finding | None:
        """The shortest counterexample to the first law that does not hold."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.tensor(self._drawn(dtype), dtype=dtype)
        # All triples of the first few samples, then random triples of ranges; sorted, so that the shortest come first.
        groups = [[[item] for item in group] for group in itertools.product(range(min(len(drawn), 13)), repeat=3)]
        sizes = torch.randint(1, 4, (TRIPLES, 3), generator=generator).tolist()
        picks = torch.randint(len(drawn), (TRIPLES, 9), generator=generator).tolist()
        groups += [[row[:a], row[3 : 3 + b], row[6 : 6 + c]] for (a, b, c), row in zip(sizes, picks, strict=True)]
        groups.sort(key=lambda group: sum(map(len, group)))
        items = torch.stack([drawn[index] for group in groups for part in group for index in part])
        lengths = (len(part) for group in groups for part in group)
        begins = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        run = self._law_tests(dtype)
        for number, (law, operands, left_words, right_words) in enumerate(LAWS if self.row.commutative else LAWS[:3]):
            left, right, _ = run(items, begins, number)
            self.laws += len(groups)
            wrong = _differ(left, right, items).nonzero().flatten().tolist()
            if wrong:
                values = [[drawn[index].item() for index in part] for part in groups[wrong[0]]]
                shown = [str(part[0]) if len(part) == 1 else f"the elements {part}" for part in values]
                where = ", ".join(f"{letter} = {part}" for letter, part in zip(operands, shown, strict=False))
                sides = f"{left_words} = {left[wrong[0]].item()}, but {right_words} = {right[wrong[0]].item()}"
                return Finding(law=law, dtype=_named(dtype), example=f"{sides}, for {where}")
        return None

    def _inexact_index(self, dtype: torch.dtype) -> Finding | None:
        """A field that holds the index of an element, yet not exactly beyond 2^24: found by running ``lift`` there."""
        if not self.row.places_items or dtype.is_complex:
            return None
        drawn = [item for item in self._drawn(dtype) if cmath.isfinite(item) and abs(item) != 1] or [0]
        items = torch.tensor(drawn, dtype=dtype).repeat_interleave(6)  # two tests, of three elements each
        run, begins = self._law_tests(dtype), torch.arange(len(items) + 1, dtype=torch.int32)
        index = begins[:-1:3].double().unsqueeze(1)
        holds, exact = (
            (run(items, begins, base=base)[2] == index + base).reshape(len(drawn), 2, -1).all(1)  # by sample and field
            for base in (3, GREAT + 1)
        )
        for number, (name, kind) in enumerate(zip(self.row.fields, self.row.field_types, strict=True)):
            if kind == "value" and bool((holds & ~exact)[:, number].any()):
                example = f"the field {name!r} does not hold the index {GREAT + 1}; declare it with types: 'index'"
                return Finding(law="exact indices", dtype=_named(dtype), example=example)
        return None

    # ---- scans

    def _wrong_scan(self, dtype: torch.dtype, lengths: Sequence[int], *, once: bool) -> Finding | None:
        """The first scan of a dtype that differs from the reference. ``once``: each strategy is run once."""
        self._say(f"scans of {_named(dtype)}")
        generator = torch.Generator().manual_seed(self.seed)
        turns = itertools.cycle(itertools.product((False, True), (False, True)))
        seen: set[str] = set()
        for number, (x, dim) in enumerate(self._inputs(dtype, lengths, generator)):
            reverse, exclusive = next(turns)
            mask = torch.rand(x.shape, generator=generator) < 0.7 if number % 3 == 1 else None
            gate = x.flip(dim) if self.row.gated else None
            options: dict[str, Any] = {"mask": mask, "gate": gate, "reverse": reverse, "exclusive": exclusive}
            with emulate(seed=self.seed) as emulation:
                request = make_request(x, self.row.name, dim, **options)
                spec = request.spec(torch.empty(x.shape, dtype=request.dtype), emulation.multiprocessors)
                plan = make_plan(spec, planned(CPU))
                if once and plan.strategy in seen:
                    continue
                seen.add(plan.strategy)
                self.strategies.add(plan.strategy)
                self._say(f"{plan.strategy}, {tuple(x.shape)} along {dim}")
                build = BuildRequest(
                    name=f"check-{number}", source=render(plan), target=CPU, written=expressions(self.given)
                )
                entry = self.store.get_or_build(build)
                y = run_kernel(_Loaded(spec, load(entry), entry.source_path), x, dim, mask=mask, gate=gate)[0]
            wrong = self._compared(y, x, dim, options)
            if wrong:
                words = [f"x of shape {tuple(x.shape)} along {dim}", *(["a bool mask"] if mask is not None else [])]
                words += ["reverse"] * reverse + ["exclusive"] * exclusive + [f"strategy {plan.strategy}"]
                example = f"{', '.join(words)}: {wrong}"
                return Finding(law="agreement with the reference", dtype=_named(dtype), example=example)
        return None

    def _inputs(
        self, dtype: torch.dtype, lengths: Sequence[int], generator: torch.Generator
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """Rows, columns and transposed columns of each length; the latter with a few NaN and infinities."""
        drawn = self._drawn(dtype)
        finite = torch.tensor([item for item in drawn if cmath.isfinite(item)] or [0], dtype=dtype)
        rare = torch.tensor([item for item in drawn if not cmath.isfinite(item)] or [drawn[0]], dtype=dtype)

        def draw(shape: tuple[int, ...], share: float) -> torch.Tensor:
            chosen = torch.rand(shape, generator=generator) < share
            common = finite[torch.randint(len(finite), shape, generator=generator)]
            return torch.where(chosen, rare[torch.randint(len(rare), shape, generator=generator)], common)

        for length in lengths:
            yield draw((5 if length < SMALL // 2 else 2, length), 0), 1  # many rows, and few
            if length * COLUMNS <= SMALL:
                yield draw((1, length, COLUMNS), 1 / RARE), 1
                yield draw((length, COLUMNS + 7), 1 / RARE).t(), 1

    def _compared(self, y: torch.Tensor, x: torch.Tensor, dim: int, options: dict[str, Any]) -> str:
        """The first element that differs from the reference, in words; empty if none does."""
        floating = y.dtype.is_floating_point or y.dtype.is_complex
        wide = torch.complex128 if y.dtype.is_complex else torch.float64 if floating else y.dtype
        terms = x if self.row.gives == "index" else x.to(y.dtype)
        try:
            expected = reference.scan(terms, self.row.name, dim, dtype=wide, **options)
        except Exception as problem:  # raised by the operator's own step or output
            words = str(problem).splitlines()[0] if str(problem) else ""
            return f"the reference raised {type(problem).__name__}: {words} (it is given tensors: use torch.where)"
        self.scans += 1
        compared = torch.ones_like(y, dtype=torch.bool)
        wrong = y != expected
        if floating:
            compared, wrong = _far(y, expected, dim, reverse=options["reverse"])
        self.items += int(compared.sum())
        if not bool(wrong.any()):
            return ""
        at = tuple(wrong.nonzero()[0].tolist())
        return (
            f"y[{', '.join(map(str, at))}] = {y[at].item()}, reference {expected[at].item()}; "
            f"{int(wrong.sum())} of {y.numel()}"
        )


def _far(y: torch.Tensor, expected: torch.Tensor, dim: int, *, reverse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(elements before which nothing overflows, those of them that differ by more than rounding)."""
    accumulator = torch.float32 if y.dtype in (torch.float16, torch.bfloat16) else y.dtype
    ordered = expected.flip(dim) if reverse else expected
    so_far = torch.where(ordered.isfinite(), ordered.abs(), 0).cummax(dim).values
    so_far = so_far.flip(dim) if reverse else so_far
    most = min(math.sqrt(torch.finfo(accumulator).max), torch.finfo(y.dtype).max / 2)
    share = 8 * torch.finfo(y.dtype).eps + (1e-9 if y.dtype == expected.dtype else 1e-3)
    wide = y.to(expected.dtype)
    same = (wide == expected) | (wide.isnan() & expected.isnan())
    near = (wide - expected).abs() <= share * so_far.clamp(min=1.0)
    compared = so_far < most
    return compared, compared & ~(same | (near & wide.isfinite() & expected.isfinite()))


def _differ(left: torch.Tensor, right: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Where two results of a law differ: at all for integers, by more than rounding for others."""
    if not (left.dtype.is_floating_point or left.dtype.is_complex):
        return left != right
    finite = items[items.isfinite()].abs()
    scale = torch.maximum(left.abs(), right.abs()).clamp(min=max(1.0, float(finite.max()) if len(finite) else 1.0))
    same = (left == right) | (left.isnan() & right.isnan())
    near = (left - right).abs() <= TOLERANCE * scale
    return ~(same | (near & left.isfinite() & right.isfinite()))


def _named(dtype: torch.dtype) -> str:
    """The name of a dtype without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def _not_compiled(kind: str, failure: BuildFailure) -> Finding:
    """The finding for C++ that compiles for another kind: the operator claims one kind too many, or lacks a case."""
    said = [line.split("error: ")[1] for line in str(failure.value).splitlines() if "error: " in line]
    return Finding(
        law="C++ for each of its kinds",
        dtype=_named(LAW_DTYPES[kind]),
        example=f"{said[0] if said else failure}; if {kind} is none of the operator's kinds, leave it out of kinds=",
    )


def _checked(op: object, lengths: Iterable[int], samples: Sequence[complex] | None) -> tuple[int, ...]:
    """The lengths in rising order. Raises UnsupportedRequest for an invalid option."""
    lengths = tuple(lengths)
    wrong: dict[str, tuple[object, str]] = {}
    if not isinstance(op, Operator):
        wrong["op"] = (op, "a scanops.Operator")
    elif not all(type(length) is int and 1 <= length <= LONGEST for length in lengths):
        wrong["lengths"] = (lengths, f"integers from 1 to {LONGEST}; by default lengths that reach every strategy")
    elif samples is not None and not (
        len(samples) and all(isinstance(item, int | float | complex) for item in samples)
    ):
        wrong["samples"] = (samples, "a sequence of at least one number, or None")
    for name, (value, allowed) in wrong.items():
        raise UnsupportedRequest(
            f"check_operator: invalid {name}",
            allowed=allowed,
            value=f"{name}={value!r}",
            hint=f"see help(scanops.check_operator), or leave {name} out",
        )
    return tuple(sorted(set(lengths)))
