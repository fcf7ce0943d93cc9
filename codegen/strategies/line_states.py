"""Recurrences with several states a line, whose sum over the states is all that is written.

The states of a line are in registers, shared out over neighbouring threads; steps come in tiles through shared memory.
Nothing is combined across threads but the sum over states, so that a step costs its arithmetic alone. Source: the study
of a selective scan's cost by Gu and Dao, "Mamba" (2023), appendix D, turned by 90 degrees: time is walked, not scanned.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

from scanops.codegen.dtypes import DTYPES, late_field, set_derived
from scanops.codegen.fusion.graph import wide
from scanops.codegen.fusion.stages import FULL, STEPS, TILE, OperandGradient, Stages, split_stages
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.launch import Launch
from scanops.codegen.layouts import STEP_DIM, dims_of, unit_of
from scanops.codegen.lines import lanes_of
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec
from scanops.codegen.strategies.base import (
    MOST_NAME,
    WARP,
    Constant,
    Plan,
    ceil_div,
    count_of,
    is_power_of_two,
    power_of_two_above,
    require,
)
from scanops.errors import UnsupportedRequest

THREADS = 256  # of a block
GROUP_STEPS = 16  # whose sums lanes exchange together
TILE_STEPS = 32  # of a tile, where a line has enough lanes
MOST_ITEMS = 8  # of a thread in a tile: registers of the next tile's items
RUN_STEPS = 4  # that one load from shared memory serves
BACK_STEPS, MOST_BACK = 16, 32  # of a tile of a backward pass with more states than that, which are in shared memory
TILE_PAD = 4  # columns beside the states of a step in shared memory, so that steps begin in different banks
TYPE_BYTES = {"float": 4, "double": 8, "int": 4, "long long": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesPlan(Plan):
    """``lanes`` threads share a line, each with some of its states and ``items`` steps of a tile."""

    strategy: ClassVar[str] = "states"

    lanes: int  # threads per line
    blocks: int = 2  # resident blocks per multiprocessor, which registers are limited to
    group: int = RUN_STEPS  # steps whose sums the lanes of a line exchange together, or as many as there are lanes

    stages: Stages = late_field()  # the expressions, by where they are computed
    value: str = late_field()  # C type of the accumulator

    def __post_init__(self) -> None:
        """Check the numbers, and split the expressions into stages."""
        spec = self.spec
        assert spec.fusion is not None
        wanted = tuple(each == "1" for each in spec.gradient[: len(spec.fusion.operands)])
        set_derived(self, tiles=0, origin=self.origin or f"rule: {self.strategy}", warps=self.threads // WARP)
        set_derived(self, stages=split_stages(spec.fusion, wanted), value=DTYPES[wide(spec.fusion.scanned)].value)
        fits = self.threads % WARP == 0 and is_power_of_two(self.lanes) and self.lanes <= WARP
        require(self, fits, "a block of whole warps, and lanes that are a power of two up to 32")
        require(self, self.tile_steps % RUN_STEPS == 0, f"a tile of a multiple of {RUN_STEPS} steps")
        require(self, is_power_of_two(self.items), "a power of two of items")

    @property
    def template(self) -> str:  # type: ignore[override]
        """The template of the forward or the backward kernel."""
        return "states_backward.cu.j2" if self.spec.gradient else "states.cu.j2"

    # ---- shape of a tile

    @property
    def tile_steps(self) -> int:
        """Steps of a tile."""
        return self.lanes * self.items

    @property
    def tile(self) -> int:
        """Steps of a tile."""
        return self.tile_steps

    @property
    def block_lines(self) -> int:
        """Lines of a block."""
        return self.threads // self.lanes

    @property
    def thread_states(self) -> int:
        """States of a line that one thread has."""
        return ceil_div(self.spec.states, self.lanes)

    @property
    def along_lines(self) -> bool:
        """Whether neighbouring lines are neighbours in memory."""
        return self.spec.input_layout == "transposed"

    @property
    def access(self) -> int:
        """Items of a run that a thread loads, stores, or passes through shared memory at once."""
        return min(self.spec.multiple, self.items)

    @property
    def buffers(self) -> int:
        """Copies of what all lines of a block read of a tile: with two, one barrier a tile is enough."""
        return 2 if not self.spec.gradient and self._bytes_with(2) <= self.target.block_shared_bytes else 1

    def in_runs(self, place: int) -> bool:
        """Whether the items of an operand lie in memory as a thread's runs do."""
        assert self.spec.fusion is not None
        return unit_of(self.spec.fusion.operands[place].layout) == ("l" if self.along_lines else "t")

    @property
    def output_runs(self) -> bool:
        """Whether results lie in memory as a thread's runs do."""
        return self.spec.input_layout != "strided"

    # ---- which operands are read where

    @property
    def item_reads(self) -> tuple[int, ...]:
        """The operands that are read for each step of a line."""
        stages = self.stages
        read = {*stages.prepared[STEPS].operands}
        if self.spec.gradient:
            read |= {*stages.reach.operands, *stages.operand_gradients(STEPS)[0].operands}
            read |= {*stages.finish.operands} if stages.reads_sums else set()
        else:
            read |= {*stages.finish.operands}
        return tuple(sorted(read))

    @property
    def scan_reads(self) -> tuple[int, ...]:
        """Of these, those with an item for each step that the scan alone reads."""
        return tuple(at for at in self.stages.prepared[STEPS].operands if STEP_DIM in self._dims(at))

    @property
    def item_operands(self) -> tuple[int, ...]:
        """Of these, those with an item for each step."""
        return tuple(at for at in self.item_reads if STEP_DIM in self._dims(at))

    @property
    def line_operands(self) -> tuple[int, ...]:
        """Of these, those with an item for a whole line."""
        return tuple(at for at in self.item_reads if STEP_DIM not in self._dims(at))

    @property
    def kept(self) -> tuple[int, ...]:
        """The operands of steps that results are made of, which are kept while the next tile is loaded."""
        return tuple(at for at in self.stages.finish.operands if at in self.item_operands)

    def _dims(self, place: int) -> frozenset[str]:
        assert self.spec.fusion is not None
        return dims_of(self.spec.fusion.operands[place].layout)

    def place_of(self, value: int) -> int:
        """The place of the operand that a value of the scan is."""
        return int(self.stages.graph.nodes[value][2])

    def result_type(self, number: int) -> str:
        """The C type of an output in memory."""
        assert self.spec.fusion is not None
        return DTYPES[self.spec.fusion.outputs[number].dtype].storage

    # ---- constants, parameters, launch

    def every_constant(self) -> tuple[Constant, ...]:
        """The numbers that the text and the headers name."""
        spec, loads = self.spec, self.tile_steps * self.spec.states
        tiles = self.stages.prepared["tile"].operands
        along = bool(tiles) and any(unit_of(spec.fusion.operands[at].layout) == "t" for at in tiles)  # type: ignore[union-attr]
        return (
            Constant("kReverse", spec.reverse, "scan from the last step to the first"),
            Constant("kStates", spec.states, "states of a line"),
            Constant("kBlockThreads", self.threads, "threads per block"),
            Constant("kBlocksPerSm", self.blocks, "resident blocks per multiprocessor"),
            Constant("kLanes", self.lanes, "threads per line"),
            Constant("kBlockLines", self.block_lines, "lines per block"),
            Constant("kThreadStates", self.thread_states, "states per thread"),
            Constant("kWhole", self.thread_states * self.lanes == spec.states, "all threads have as many states"),
            Constant("kTileSteps", self.tile_steps, "steps of a tile"),
            Constant("kItems", self.items, "items of a thread in a tile, of each operand with an item a step"),
            Constant("kAccess", self.access, "items of a run in memory, which is aligned"),
            Constant("kAlongLines", self.along_lines, "runs go along neighbouring lines, not along steps"),
            Constant("kGroupSteps", self.group_steps, "steps whose sums the lanes of a line exchange together"),
            Constant("kRunSteps", RUN_STEPS, "steps whose values one load from shared memory brings"),
            Constant("kBuffers", self.buffers, "tiles of what all lines read in shared memory"),
            Constant("kTilePitch", self.tile_pitch, "states of a step of these, and padding"),
            Constant("kTileLoads", ceil_div(loads, self.threads), "of these, items that a thread loads"),
            Constant("kTileDivides", loads % self.threads == 0, "all threads load as many"),
            Constant("kTileAlongSteps", along, "their steps are contiguous in memory, not their states"),
            Constant("kSaveSteps", save_steps(spec.states), "steps between saved states"),
            *self._constants_of_target(),
        )

    @property
    def group_steps(self) -> int:
        """Steps whose sums the lanes of a line exchange together."""
        return min(max(self.group, self.lanes), self.tile_steps)

    @property
    def tile_pitch(self) -> int:
        """Values of a step of what all lines read, with padding."""
        return ceil_div(self.thread_states * self.lanes, TILE_PAD) * TILE_PAD + TILE_PAD

    @property
    def parameters(self) -> tuple[str, ...]:
        """The declarations of the kernel's parameters."""
        spec = self.spec
        operands = [f"const __grid_constant__ Operand<const {each.type}> {each.name}" for each in spec.sources]
        if spec.gradient:
            operands += [
                f"const __grid_constant__ Operand<const Grad{n}> grad_output{n}"
                for n in range(len(spec.fusion.outputs))  # type: ignore[union-attr]
            ]
        results = [f"const __grid_constant__ Operand<{kind}> result{n}" for n, kind in enumerate(self.result_types)]
        carries = {"carry_in": "const Carry* carry_in", "carry_out": "Carry* carry_out"}
        carries["saved"] = "const Carry* saved" if spec.gradient else "Carry* saved"
        others = [carries[name] for name in self._carries]
        return (*operands, *results, *others, "const __grid_constant__ Sizes sizes")

    @property
    def result_types(self) -> tuple[str, ...]:
        """The C types of the tensors that the kernel writes."""
        if self.spec.gradient:
            return tuple(self.gradient_type(each.operand, each.stage) for each in self.stages.gradients)
        return tuple(map(self.result_type, range(len(self.spec.fusion.outputs))))  # type: ignore[union-attr]

    def gradient_type(self, place: int, stage: str) -> str:
        """The C type of a part of the gradient of an operand: its own, or the accumulator's where parts are added."""
        whole = self._dims(place) >= {"l", "t"} and stage in (STEPS, FULL)
        return DTYPES[self.spec.fusion.operands[place].dtype].storage if whole else self.value  # type: ignore[union-attr]

    @property
    def _carries(self) -> tuple[str, ...]:
        spec = self.spec
        there = {
            "carry_in": spec.initial or (spec.gradient and spec.final),
            "carry_out": spec.initial if spec.gradient else spec.final,
            "saved": spec.saves or bool(spec.gradient),
        }
        return tuple(name for name, given in there.items() if given)

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a block takes neighbouring lines."""
        grads = len(self.spec.fusion.outputs) if self.spec.gradient else 0  # type: ignore[union-attr]
        operands = [f"operand{n}" for n in range(len(self.spec.sources) + grads)]
        results = [f"result{n}" for n in range(len(self.result_types))]
        return Launch(
            kernel=f"{self.spec.slug.replace('-', '_')[:MOST_NAME]}_{self.strategy}",
            parameters=(*operands, *results, *self._carries, "sizes"),
            threads=self.threads,
            shared_bytes=self.shared_bytes,
            adjacent=0,
            width=self.block_lines,
        )

    # ---- shared memory

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self._bytes_with(self.buffers)

    def _bytes_with(self, buffers: int) -> int:
        stages, size = self.stages, TYPE_BYTES[self.value]
        steps, lines = self.tile_steps, self.block_lines
        values = steps * lines if self.along_lines else lines * (steps + TILE_PAD)
        parts = [TYPE_BYTES[stages.type_of(at)] * values for at in stages.values[STEPS]]
        tile = buffers * steps * self.tile_pitch
        parts += [TYPE_BYTES[stages.type_of(at)] * tile for at in stages.values["tile"]]
        if not self.spec.gradient:
            parts += [size * values for _ in stages.sums]
        else:
            parts += [size * values for _ in range(len(stages.sums) * (2 if stages.reads_sums else 1))]
            parts += [size * (steps + 1) * self.threads * self.thread_states]
            parts += [size * len(stages.gradient_values(TILE)) * self.warps * steps * self.tile_pitch]
        return sum(ceil_div(each, ACCESS_BYTES) * ACCESS_BYTES for each in parts)

    def write_gradient(self, gradient: OperandGradient, value: str) -> str:
        """The C++ expression of a gradient in memory."""
        dtype = self.spec.fusion.operands[gradient.operand].dtype  # type: ignore[union-attr]
        own = self.gradient_type(gradient.operand, gradient.stage) == DTYPES[dtype].storage
        return DTYPES[dtype].write.format(x=value) if own else value

    def full_number(self, place: int) -> int:
        """The number of the value of the scan that an operand is, of which nothing is shared."""
        return next(n for n, at in enumerate(self.stages.values[FULL]) if self.place_of(at) == place)


def save_steps(states: int) -> int:
    """Steps between the states that a forward pass saves: at most 4 bytes for each step of a line.

    Where that allows it, as many as a tile of the backward pass, which then scans nothing twice.
    """
    return max(min(TILE_STEPS, MOST_ITEMS * lanes_of(states)), power_of_two_above(states))


@functools.lru_cache(maxsize=1024)
def plan(key: KernelKey) -> StatesPlan:
    """Plan some four states a thread, and blocks whose shared memory the target has.

    H100, bfloat16, 16 states: of few lines, 5120 of 16384 steps, the forward pass has 1234 us with 128 threads and 1422
    with 256; of 16384 lines of 2048 steps 294 and 284. A backward pass of tiles of 16 steps, which scans half of its
    steps a second time, has 1387 us there, and 7069 of the former; of 32 steps 1301 and 4973.
    """
    spec, target = key.spec, key.architecture
    lanes, is_few = lanes_of(spec.states), key.is_few
    states = ceil_div(spec.states, lanes)
    steps = BACK_STEPS if spec.gradient and spec.states > MOST_BACK else TILE_STEPS
    for threads in (THREADS, THREADS // 2, THREADS // 4, WARP):
        if threads == THREADS and is_few and not spec.gradient:
            continue
        found = StatesPlan(
            spec=spec,
            target=target,
            why=f"{count_of(spec.states, 'state')} of a line in the registers of {count_of(lanes, 'thread')}, "
            f"{states} each",
            items=max(1, min(MOST_ITEMS, steps // lanes)),
            lanes=lanes,
            threads=threads,
            blocks=4 if is_few and not spec.gradient else 2,
            group=GROUP_STEPS // 2 if is_few else GROUP_STEPS,
        )
        if 2 * (found.shared_bytes + target.reserved_bytes) <= target.shared_bytes:
            return replace(found, blocks=max(2, found.blocks))
        if found.shared_bytes <= target.block_shared_bytes:
            return replace(found, blocks=1)
    raise UnsupportedRequest(
        f"{spec.op}: {spec.states} states of {spec.fusion.scanned} take more shared memory than a block has",  # type: ignore[union-attr]
        allowed=f"tiles of {steps} steps in at most {target.block_shared_bytes} bytes",
        value=f"states={spec.states}, {found.shared_bytes} bytes",
        hint="scan in float32, or split the summed dimension and add the results",
    )


def fits(spec: ScanSpec) -> bool:
    """Whether a spec is of a scan with states."""
    return spec.states > 0
