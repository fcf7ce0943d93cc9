"""torch.library.opcheck, and differences, of every operation of torch.ops.scanops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import scanops
from scanops.codegen.operators import BUILT_IN, operator_named
from scanops.ops import BACKWARD, SCANS
from tests.torch_integration.rows import COMPOUND

FAST = ("test_schema", "test_autograd_registration", "test_faketensor")
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "stepped": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
}
VARIANTS = (
    "plain",
    "reverse, exclusive",
    "selected",
    "weighted",
    "final",
    "initial, final",
    "number",
    "flags",
    "offsets",
)
SOMETIMES = 4  # on a CPU, of so many calls one is traced by AOTAutograd as well, which takes ten times as long
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
Count = Callable[[str, object], None]
OPS = (*BUILT_IN, COMPOUND.name)


def items(op: str, *shape: int, device: str, seed: int = 0) -> torch.Tensor:
    row = operator_named(op)
    generator = torch.Generator().manual_seed(seed)
    if "float" not in row.kinds:
        return torch.randint(-9, 9, shape, generator=generator).to(device)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    return drawn.to(device).requires_grad_(row.gives != "bool")


def call_of(op: str, variant: str, layout: str, device: str = "cpu") -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """An operation, its tensors and its options."""
    row, draw = operator_named(op), partial(items, op, device=device)
    x = LAYOUTS[layout](draw(3, 5).detach()).requires_grad_(draw(1).requires_grad)
    mask = {"selected": x.detach() > 0.9, "weighted": draw(5, seed=1)}.get(variant)
    gate = draw(3, 1, seed=2) if row.gated else None
    starts = torch.tensor([False, True, False, True, False], device=device) if variant == "flags" else None
    offsets = torch.tensor([0, 2, 2, 5], device=device) if variant == "offsets" else None
    truths = row.gives == "bool"
    initial = (draw(3, seed=3) > 1 if truths else draw(3, seed=3)) if variant == "initial, final" else None
    options: dict[str, Any] = {"start": True if truths else 1} if variant == "number" else {}
    if variant == "reverse, exclusive":
        options |= {"reverse": True, "exclusive": True}
    form = SCANS[bool(row.indices), "final" in variant]
    return form.overload, (x, mask, gate, starts, offsets, initial, 1, op), options


@pytest.fixture(autouse=True)
def known() -> None:
    scanops.register_operator(COMPOUND)


@DEVICES
@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str, device: str, record_property: Count) -> None:
    checks = 0
    turn = OPS.index(op)
    for place, variant in enumerate(VARIANTS):
        if "initial" in variant and not operator_named(op).resumes:
            continue
        for shift, layout in enumerate(LAYOUTS):
            overload, tensors, options = call_of(op, variant, layout, device)
            found = opcheck(overload, tensors, options, test_utils=FAST)
            traced = shift == (turn + place) % len(LAYOUTS) and (turn + place) % SOMETIMES == 0
            if traced or device == "cuda":
                found |= opcheck(overload, tensors, options, test_utils="test_aot_dispatch_dynamic")
            assert set(found.values()) == {"SUCCESS"}
            checks += len(found)
    record_property("torch.library.opcheck", checks)


ROWS = {**BUILT_IN, COMPOUND.name: COMPOUND}
DIFFERENTIABLE = [name for name, row in ROWS.items() if "float" in row.kinds and row.gives != "bool"]


@DEVICES
@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_gradients(op: str, device: str, record_property: Count) -> None:
    """The operation's own, to the second order, as nobody sees them who calls scanops.scan on a CPU."""
    for variant in ("weighted", "initial, final"):
        overload, tensors, options = call_of(op, variant, "dense", device)

        def results(*given: Any, overload: Any = overload, options: Any = options) -> Any:
            found = overload(*given, **options)
            found = found if isinstance(found, tuple) else (found,)
            return tuple(y for y in found if y.requires_grad)

        assert gradcheck(results, tensors)
        assert gradgradcheck(results, tensors)
        row, grad = operator_named(op), torch.rand(3, 5, dtype=torch.float64, device=device)
        needs = tuple(tensors[k] is not None and tensors[k].requires_grad for k in (0, 1, 2, 5))
        plain = tuple(each.detach() if isinstance(each, torch.Tensor) else each for each in tensors[:6])
        y, *others = (
            overload(*plain, 1, op, **options)
            if row.indices or "final" in variant
            else (overload(*plain, 1, op, **options),)
        )
        read = (y, others[0] if row.indices else None)
        found = opcheck(BACKWARD, (grad, None, *read, *plain, 1, op, needs))
        record_property("torch.library.opcheck", len(found))


def test_where_kernels_run(record_property: Count) -> None:
    with scanops.emulate():
        for op in ("cummax", "linear"):
            overload, tensors, options = call_of(op, "initial, final", "transposed")
            record_property("torch.library.opcheck", len(opcheck(overload, tensors, options)))
