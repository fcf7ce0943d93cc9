"""Base class of all plans: the numbers and booleans that a template prints, checked at construction."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import starmap
from typing import Any, ClassVar, NamedTuple

from scanops.codegen.dtypes import late_field, set_derived
from scanops.codegen.fragments import Fragments, fragments
from scanops.codegen.kernel_key import MANY, KernelKey, Variant
from scanops.codegen.launch import FIELDS
from scanops.codegen.launch import Launch as Launch
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.targets import WARP as WARP
from scanops.codegen.targets import Target
from scanops.errors import UnsupportedRequest

HALF_BYTES = 2
MOST_NAME = 75  # characters of a spec's short name in the name of its kernel's function
STATUS_BYTES = 4  # of a state in a status word
MOST = {"items": 64, "vectors": 16, "blocks": 32, "stages": 8}  # all unrolled but the resident blocks per SM
TAKEN = {  # a flag of the spec -> parameters of its kernels
    **{"strided": ("geometry",)},
    **{"stores_final": ("carry_out",), "by_offsets": ("offsets",), "takes_length": ("length",)},
    **{"linked": ("offsets",), "takes_initial": ("carry_in", "carry_in_step")},
}
LINKING = (
    "block",
    "split",
    "persistent",
    "columns",
    "columns_lookback",
)  # strategies whose kernels hand on the states of lines
FROM_ZERO = frozenset(("boundary", "stages", "tiles"))  # 0: the plan has none, or they are not derived yet


def count_of(count: int | str, noun: str) -> str:
    """Return a count with its noun in the right number: ``"1 row"``, ``"4 rows"``, ``"up to 4096 items"``."""
    return f"{count} {noun}{'s' * (str(count) != '1')}"


class Constant(NamedTuple):
    """A number of a plan, printed as a ``constexpr`` of the kernel's text."""

    name: str  # in C: kBlockThreads
    value: int
    meaning: str  # what the number counts, printed as a comment

    @property
    def type(self) -> str:
        """The C type of the value."""
        return "bool" if type(self.value) is bool else "int" if self.value < 2**31 else "long long"


class Result(NamedTuple):
    """Names of one output of a kernel in its text."""

    name: str  # of the kernel's parameter
    type: str  # of an item; an access of several is a Vector<type>
    pointer: str  # of a thread's accesses


VALUES = Result("output", "Output", "y")
LINE_SUMS = Result("line_sums", "Sum", "sums")
FURTHER_OUTPUTS = ("indices", "third", "fourth")  # fields of ScanArguments
SECONDS = (Result("second", "Second", "z"), Result("indices", "Index", "z"))  # by whether it holds indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a spec is computed on a target: every number its template prints.

    A plan from which no correct kernel can be rendered raises UnsupportedRequest at construction, as the planner, a
    candidate of the tuner and a plan read from a file all need.
    """

    strategy: ClassVar[str]
    template: ClassVar[str]

    spec: ScanSpec
    target: Target
    why: str = field(compare=False)  # the reason for the strategy and the shape, in a sentence
    # What the numbers come from: "measured: sum-f32-n4096", the entry of a table or file, or "rule: warp".
    origin: str = field(default="", compare=False)
    threads: int  # per block
    items: int  # consecutive items that a thread scans serially: one access, or a run of a column
    variant: Variant = MANY  # for as many lines as fill the GPU, or for so few that one block a line would not
    tiles: int = field(init=False)  # steps of a block along a line; 1: the line is one tile and the kernel has no loop

    # ---- what follows from the fields above, for the text

    warps: int = late_field()  # per block
    code: Fragments = late_field()  # the C++ text of types and expressions of the spec
    lifted: tuple[Source, ...] = late_field()  # the operands that items are lifted from
    results: tuple[Result, ...] = late_field()  # the outputs, in the order of the kernel's parameters
    summed: tuple[Result, ...] = late_field()  # further ones, whose sums over lines are one parameter
    # A thread's results follow from each other, starting from `prefix`: for a combine of several instructions. Else
    # items are scanned first and `prefix` is combined with each: one dependent step instead of one per item.
    serial: bool = late_field()
    uses_select: bool = late_field()  # lanes select each state field instead of branching, because combine is expensive

    def __post_init__(self) -> None:
        """Check the numbers, and derive the tiles of a line and what the text follows from."""
        set_derived(self, tiles=0, origin=self.origin or f"rule: {self.strategy}")
        numbers = self.numbers()
        whole = all(
            type(value) is bool or (type(value) is int and value >= (0 if name in FROM_ZERO else 1))
            for name, value in numbers.items()
        )
        require(self, whole, "whole numbers, at least 1 each (boundary and stages at least 0)")
        bounded = all(numbers.get(name, 1) <= most for name, most in MOST.items())  # type: ignore[operator]
        require(self, bounded, "at most " + ", ".join(f"{most} {name}" for name, most in MOST.items()))
        fits = self.threads % WARP == 0 and self.threads <= self.target.block_threads
        require(self, fits, "a block of whole warps that the target takes")
        spec, operator, code = self.spec, self.spec.operator, fragments(self.spec)
        require(self, self.strategy in LINKING or not spec.linked, f"strategy {', '.join(LINKING)} for linked lines")
        former = Source(name="former", type="Former", pointer="f", dtype=spec.carry, layout="dense")
        further = starmap(Result, spec.fusion.further) if spec.fusion else [SECONDS[spec.indexed]] * spec.doubled
        outputs = (VALUES, *further)
        stored = len(outputs) - spec.line_sums
        set_derived(
            self,
            warps=self.threads // WARP,
            code=code,
            lifted=(*spec.sources, *spec.next_starts, *[former] * spec.recomputes),
            results=outputs[:stored],
            summed=outputs[stored:],
            serial=spec.segments is not None or not operator.of_elements,
            uses_select=bool(operator.append or spec.segments or operator.indices) and not code.calls,
        )
        set_derived(self, tiles=ceil_div(spec.capacity + self._lead, max(1, self.tile)))

    @property
    def key(self) -> KernelKey:
        """What the plan was made for."""
        return KernelKey(self.spec, self.target.name, self.variant)

    def constants(self) -> tuple[Constant, ...]:
        """The numbers of the strategy that the kernel's text names, in the order in which it declares them."""
        return ()

    def every_constant(self) -> tuple[Constant, ...]:
        """The numbers that headers may name, each once, in the order of their declaration."""
        spec, operator = self.spec, self.spec.operator
        further = [source.geometry for source in spec.sources]
        uneven = spec.length is None or spec.complete or spec.length % self.tile != 0
        found = (
            Constant("kLength", spec.length or 0, "items per line"),
            Constant("kReverse", spec.reverse, "scan from the last item to the first"),
            Constant("kBlockThreads", self.threads, "threads per block"),
            Constant("kBlockWarps", self.warps, "warps per block"),
            *self.constants(),
            Constant("kZeroFills", self.extends or not hasattr(self, "stages"), "items that do not exist are 0"),
            Constant("kExclusive", spec.exclusive, "a result is the prefix before its item"),
            Constant("kComplete", spec.complete, "a line has one result more than items"),
            Constant("kAligned", spec.aligned, "dense operands start on a 16-byte boundary"),
            Constant("kUneven", uneven, "the last tile of a line is partial"),
            Constant("kSeveralOperands", len(spec.streams) > 1, "each item is made of several operands"),
            Constant("kGuarded", self.guarded, "some tile reaches past the end of its line"),
            Constant("kSerial", self.serial, "each result is computed from the one before it"),
            Constant("kCompensates", self.compensates, "a total regains the rounding errors of its steps"),
            Constant("kExtends", self.extends, "a thread's total is first computed with fewer instructions"),
            Constant("kQuick", self.quick, "results as well are made with fewer instructions, where no line begins"),
            Constant("kWithin", self.within, "a result before an item has fields of the item, or of its segment alone"),
            Constant("kChoosesLanes", bool(self.launch.chosen), "the length chooses the lanes or stripes of a row"),
            Constant("kLanesDown", False, "the lane before a lane in scan order is the next one"),
            Constant("kAppends", bool(operator.append), "a single item is appended by an operation of its own"),
            Constant("kSelects", self.uses_select, "lanes select each field of a state instead of branching"),
            Constant("kSeveralTiles", self.tiles > 1, "a line has several tiles"),
            Constant("kInner", spec.inner, "lines side by side in the output"),
            Constant("kThreadLines", getattr(self, "vector", 1), "lines per thread"),
            Constant("kStridedOperands", 1 + max(3, *further), "operands that may have strides of their own"),
            Constant(
                "kFlagsEndSegments", spec.reverse and not spec.per_segment, "a head flag ends a segment in scan order"
            ),
            Constant("kFlagsNextItems", spec.reverse and spec.per_segment, "the item after a head begins a segment"),
            Constant("kResumes", spec.per_segment and spec.initial, "segments have a carry-in"),
            Constant("kNextBegin", -1 if spec.reverse else 1, "from a begin in memory to that of what follows"),
            Constant("kStatusWords", max(1, self.code.state_bytes // STATUS_BYTES), "status words of a tile"),
            Constant("kLinked", spec.linked, "other GPUs read status words"),
            Constant("kCopiesAsync", self.target.copies_async, "the target has cp.async"),
            *self._constants_of_target(),
        )
        return tuple({constant.name: constant for constant in reversed(found)}.values())[::-1]

    def _constants_of_target(self) -> tuple[Constant, ...]:
        """What every kernel may ask of its target."""
        return (
            Constant("kBeginsEarly", self.target.launches_early, "the target has programmatic dependent launch"),
            Constant("kConvertsBfloat", self.target.bfloat_convert, "the target converts to bfloat16"),
            Constant("kConvertsFloat8", self.target.float8_convert, "the target converts 8-bit floats"),
        )

    def layout_of(self, source: Source) -> str:
        """Arguments of OperandLayout: how an operand lies in memory."""
        flags = {
            "kDense": source.layout == "dense",
            "kContiguous": source.layout == "rows",
            "kMisaligned": source in getattr(self, "shifted", ()),
            "kFlat": self.is_flat(source),
            "kRepeated": source.pointer == "e",
            "kFirst": source == self.spec.streams[0],
            "kPerStep": source.layout == "step",
        }
        return f"{' | '.join(name for name, holds in flags.items() if holds) or 0}, {source.geometry}, {source.shift}"

    def is_flat(self, source: Source) -> bool:
        """Whether a warp copies its rows of an operand as one range."""
        return False

    @property
    def flat(self) -> bool:
        """Whether a warp copies its rows of some operand as one range."""
        return any(map(self.is_flat, self.spec.streams))

    @property
    def visited(self) -> tuple[Source, ...]:
        """The operands with an item for each of a line, in the order in which a thread reads them."""
        return self.spec.streams

    @property
    def publishes(self) -> bool:
        """Whether blocks, or linked GPUs, read what others publish."""
        return self.spec.linked or "workspace" in self.launch.parameters

    @property
    def locates_items(self) -> bool:
        """Whether the state of an item depends on where it lies in its line."""
        return self.spec.looks_ahead or self.spec.operator.places_items or self.spec.by_offsets

    @property
    def parameters(self) -> tuple[str, ...]:
        """The declarations of the kernel's parameters."""
        spec = self.spec
        declared = {
            "output": "Output* output",
            "geometry": "const __grid_constant__ Geometry geometry",
            "neighbours": "const Neighbours neighbours",
            "lines": "long long lines",
            "carry_in": "const Carry* carry_in",
            "carry_in_step": "long long carry_in_step",
            "carry_out": "Carry* carry_out",
            "offsets": "const Link link" if spec.linked else "const Segments segments",
            "length": "Position length",
            "workspace": "unsigned long long* workspace",
        }
        for name, out in zip(FURTHER_OUTPUTS, [*self.results[1:], LINE_SUMS], strict=False):
            declared[name] = f"{out.type}* {out.name}"
        names = self.launch.parameters[len(spec.sources) :]
        operands = (f"const {source.type}* {source.name}" for source in spec.sources)
        return (*operands, *(declared.get(name, f"int {name}") for name in names))

    def numbers(self) -> dict[str, object]:
        """The plan's own fields by name, for printing."""
        shared = {"spec", "target", "why", "origin", "variant"}
        return {each.name: getattr(self, each.name) for each in fields(self) if each.repr and each.name not in shared}

    def describe(self) -> str:
        """The strategy and its numbers in one line."""
        return f"{self.strategy}: " + ", ".join(f"{name} {value}" for name, value in self.numbers().items())

    # ---- a launch

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; 0 where declared arrays are enough."""
        return 0

    @property
    def launch(self) -> Launch:
        """What the grid, the parameters and the workspace of a launch follow from, as data."""
        raise NotImplementedError

    def _launch(self, *among: str, chosen: tuple[str, ...] = (), **numbers: Any) -> Launch:
        """Return the launch of these numbers, with parameters of the strategy, and ``chosen`` if it takes a length."""
        chosen = chosen if self.spec.takes_length else ()
        sources = tuple(source.name for source in self.spec.sources)
        among += ("output", *chosen)
        among += FURTHER_OUTPUTS[: len(self.results) - 1 + bool(self.summed)]
        taken = {*among, *(name for flag, names in TAKEN.items() if getattr(self.spec, flag) for name in names)}
        taken = taken - {"length"} | {"offsets"} if self.spec.ragged else taken
        taken -= {"carry_in_step"} if self.spec.per_segment else set()  # each segment has a carry-in of its own
        return Launch(
            kernel=f"{self.spec.slug.replace('-', '_')[:MOST_NAME]}_{self.strategy}",
            parameters=(*sources, *(name for name in FIELDS if name in taken)),
            threads=self.threads,
            shared_bytes=ceil_div(self.shared_bytes, ACCESS_BYTES) * ACCESS_BYTES,
            words=self.code.state_bytes // STATUS_BYTES if "workspace" in among else 0,
            chosen=chosen,
            early=int(self.target.launches_early),
            **numbers,
        )

    # ---- a tile

    @property
    def _lead(self) -> int:
        """Number of items by which the first tile may begin before its line."""
        return 0

    @property
    def tile(self) -> int:
        """Number of items of one line in a tile."""
        raise NotImplementedError

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.tile * self.tiles != self.spec.length

    @property
    def run(self) -> int:
        """Number of consecutive items that a thread scans serially."""
        return self.items

    @property
    def extends(self) -> bool:
        """Whether a thread's total is first computed with fewer instructions, and checked."""
        return bool(self.spec.operator.extend) and self.run > 1 and self.spec.segments is None and not self.code.calls

    @property
    def quick(self) -> bool:
        """Whether results may take fewer instructions than project: most warps hold no beginning of a line."""
        return self.extends and self.code.quick != "" and self.tiles > 1

    @property
    def within(self) -> bool:
        """Whether the result before an item has fields of the item itself, or is empty where its segment begins."""
        return self.spec.exclusive and (self.spec.segments is not None or bool(self.spec.operator.own))

    @property
    def compensates(self) -> bool:
        """Whether the compensation is added to a thread's total. Half types lose more by their final rounding."""
        exact = self.spec.accumulator == self.spec.out and self.spec.out.bytes > HALF_BYTES
        loses = bool(self.spec.operator.loss) and self.items > 1 and not self.serial
        return loses and exact and self.spec.out.kind == "float"


def require(plan: Plan, holds: bool, words: str) -> None:
    """Raise UnsupportedRequest, naming the invariant in ``words``, unless it ``holds`` of ``plan``."""
    if not holds:
        raise UnsupportedRequest(
            f"invalid plan for {plan.spec}",
            allowed=words,
            value=plan.describe(),
            hint=f"use the planner's own plan, or measure again: scanops tune {plan.spec}",
        )


def ceil_div(a: int, b: int) -> int:
    """The least whole number that is not below a / b."""
    return -(-a // b)


def is_power_of_two(n: int) -> bool:
    """Whether n is 1, 2, 4 and so on."""
    return n > 0 and n & (n - 1) == 0


def power_of_two_above(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()
