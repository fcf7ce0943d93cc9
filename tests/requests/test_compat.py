"""scanops.compat: functions of other packages, held to their formulas item by item, with gradients."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

import scanops
from scanops import compat
from scanops.errors import UnsupportedRequest
from scanops.fusion import functions, operators

Tensors = tuple[torch.Tensor, ...]


def hold(call: Callable[..., Any], reference: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Compare results, and the gradients of the tensors of floats."""
    results = []
    for function in (call, reference):
        leaves = [each.detach().requires_grad_(each.is_floating_point() or each.is_complex()) for each in tensors]
        found = function(*leaves)
        found = found if isinstance(found, tuple) else (found,)
        total = sum((each.abs() * torch.linspace(0.5, 1.5, each.numel()).view(each.shape)).sum() for each in found)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        results.append([*found, *torch.autograd.grad(total, wanted)])
    torch.testing.assert_close(*results)


def selective(
    u: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *others: torch.Tensor
) -> Tensors:
    """The recurrence of mamba step by step, all tensors [batch, channels, states, length] or broadcast to it."""
    d, z, bias = others
    steps = functional.softplus(delta + bias[:, None])
    h, found = torch.zeros(*u.shape[:2], a.shape[1], dtype=b.dtype), []
    for t in range(u.shape[2]):
        step, x = steps[:, :, t, None], u[:, :, t, None]
        h = torch.exp(step * a) * h + step * b[..., t] * x
        y = (h * c[..., t]).sum(-1)
        found.append(2 * y.real if y.is_complex() else y)
    return (torch.stack(found, -1) + u * d[:, None]) * functional.silu(z), h


B, CHANNELS, N, LENGTH, GROUPS = 2, 4, 3, 11, 2


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """B or C of any of its shapes as [batch, channels, states, length]."""
    if tensor.ndim == 2:
        return tensor[None, :, :, None].expand(B, -1, -1, LENGTH)
    if tensor.ndim == 3:
        return tensor[:, None].expand(-1, CHANNELS, -1, -1)
    return tensor.repeat_interleave(CHANNELS // GROUPS, 1)


SHAPES = ((CHANNELS, N), (B, N, LENGTH), (B, GROUPS, N, LENGTH))


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 1), (2, 2), (0, 2), (1, 0)])
def test_selective_scan(b: int, c: int, emulated: bool) -> None:
    def call(u: torch.Tensor, delta: torch.Tensor, *others: torch.Tensor) -> Any:
        a, b, c, d, z, bias = others
        return compat.selective_scan_fn(u, delta, a, b, c, d, z, bias, delta_softplus=True, return_last_state=True)

    def reference(u: torch.Tensor, delta: torch.Tensor, *others: torch.Tensor) -> Tensors:
        a, b, c, *rest = others
        return selective(u, delta, a, spread(b), spread(c), *rest)

    make = torch.Generator().manual_seed(0)
    shapes = (
        ((B, CHANNELS, LENGTH),) * 2,
        ((CHANNELS, N), SHAPES[b], SHAPES[c]),
        ((CHANNELS,), (B, CHANNELS, LENGTH), (CHANNELS,)),
    )
    tensors = [torch.randn(shape, generator=make, dtype=torch.float64) for shape in itertools.chain(*shapes)]
    if emulated:
        with scanops.emulate():
            hold(call, reference, *tensors)
    else:
        hold(call, reference, *tensors)


@pytest.mark.parametrize("channels_contiguous", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_selective_scan_of_packed_sequences(groups: int, channels_contiguous: bool, device: str) -> None:
    """As each sequence alone; the first one goes on from a state, and the last one's state is returned."""
    make, real = torch.Generator().manual_seed(0), {"dtype": torch.float64}
    length, bounds = 30, [0, 4, 4, 17, 30]
    u, delta, z = (torch.randn(B, CHANNELS, length, generator=make, **real) for _ in range(3))
    b, c = (torch.randn(B, groups, N, length, generator=make, **real) for _ in range(2))
    rest = [torch.randn(shape, generator=make, **real) for shape in ((CHANNELS, N), (CHANNELS,), (CHANNELS,))]
    state = torch.randn(B, CHANNELS, N, generator=make).double()
    options = {"delta_softplus": True, "return_last_state": True}

    def call(u: torch.Tensor, delta: torch.Tensor, z: torch.Tensor, b: Any, c: Any, *rest: torch.Tensor) -> Any:
        a, d, bias, state = rest
        turned = u.transpose(1, 2).contiguous().transpose(1, 2) if channels_contiguous else u
        offsets = torch.tensor(bounds, dtype=torch.int32, device=u.device)
        y, last = compat.selective_scan_fn(
            turned, delta, -a.abs(), b, c, d, z, bias, cu_seqlens=offsets, initial_state=state, **options
        )
        assert y.stride(1) == 1 if channels_contiguous else y.is_contiguous()
        return y, last

    def reference(u: torch.Tensor, delta: torch.Tensor, z: torch.Tensor, b: Any, c: Any, *rest: torch.Tensor) -> Any:
        a, d, bias, state = rest
        found, last = [], state
        for begin, end in itertools.pairwise(bounds):
            if begin < end:
                parts = [each[..., begin:end] for each in (u, delta, b, c, z)]
                initial = state if begin == 0 else torch.zeros_like(state)
                y, last = compat.selective_scan_fn(
                    parts[0], parts[1], -a.abs(), *parts[2:4], d, parts[4], bias, initial_state=initial, **options
                )
                found.append(y)
        return torch.cat(found, -1), last

    tensors = [each.to(device) for each in (u, delta, z, b, c, *rest, state)]
    if device == "cpu":
        hold(call, reference, *tensors)
    else:
        torch.testing.assert_close(call(*tensors), reference(*tensors))


@pytest.mark.parametrize("heads", [0, 4])
@pytest.mark.parametrize("indexed", [False, True])
def test_steps_of_decoding(indexed: bool, heads: int, device: str) -> None:
    """As the formula of mamba_ssm, in place; without heads as a scan of one step."""
    make = torch.Generator().manual_seed(0)
    lines, groups = (heads, 3) if heads else (CHANNELS,), (2,) if heads else ()
    state = torch.randn(5, *lines, N, generator=make).to(device)
    rows = torch.tensor([3, 1], device=device) if indexed else torch.arange(2, device=device)
    state = state if indexed else state[:2]
    x, dt, z = (torch.randn(2, *lines, generator=make).to(device) for _ in range(3))
    b, c = (torch.randn(2, *groups, N, generator=make).to(device) for _ in range(2))
    a = -torch.rand(*lines, N, generator=make).to(device)
    d, bias = (torch.randn(lines, generator=make).to(device) for _ in range(2))
    step = functional.softplus(dt + bias).unsqueeze(-1)
    whole_b, whole_c = ((each.repeat_interleave(heads // 2, 1) if heads else each).unsqueeze(-2) for each in (b, c))
    after = torch.exp(step * a) * state[rows] + step * whole_b * x.unsqueeze(-1)
    expected = ((after * whole_c).sum(-1) + d * x) * functional.silu(z)
    whole = state.clone()
    whole[rows] = after
    indices = rows.int() if indexed else None
    y = compat.selective_state_update(state, x, dt, a, b, c, d, z, bias, True, indices)
    torch.testing.assert_close((y, state), (expected, whole))
    if not (heads or indexed):
        scanned = compat.selective_scan_fn(
            *(each.unsqueeze(-1) for each in (x, dt)), a, *(each.unsqueeze(-1) for each in (b, c)), delta_softplus=True
        )
        again = compat.selective_state_update(torch.zeros_like(state), x, dt, a, b, c, dt_softplus=True)
        torch.testing.assert_close(again, scanned[..., 0])


MAMBA = """
import sys, torch
if sys.argv[1] == "provided":
    import scanops.compat
    assert scanops.compat.provide("mamba_ssm") and scanops.compat.provide("mamba_ssm")
import transformers
torch.manual_seed(0)
config = transformers.MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2, pad_token_id=0)
model, ids = transformers.MambaForCausalLM(config), torch.randint(1, 40, (2, 9))
optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
for _ in range(3):
    loss = model(ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
model.eval()
found = model.generate(ids, max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True)
from scanops.cli.doctor import examine
(row,) = [each for each in examine()[0] if each.name == "mamba_ssm"]
print(row.facts["provided"] == ("mamba_ssm" in sys.modules) and row.facts["provided"])
torch.save((torch.stack(losses), found.sequences, torch.stack(found.logits)), sys.argv[2])
"""


def test_models_of_transformers(tmp_path: Path) -> None:
    """Training and generation of a Mamba model with what is provided, and by the loops of transformers itself."""
    pytest.importorskip("transformers")
    found = []
    for name in ("provided", "own"):
        command = [sys.executable, "-c", MAMBA, name, str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(name == "provided")
        assert ("falling back" in done.stderr and "selective_scan_fn" in done.stderr) == (name == "own")
        found.append(torch.load(tmp_path / name))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_what_is_installed_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mamba_ssm.py").write_text("own = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not compat.provide("mamba_ssm") and not compat.is_provided("mamba_ssm")
    assert importlib.import_module("mamba_ssm").own and not compat.provide("mamba_ssm")
    monkeypatch.delitem(sys.modules, "mamba_ssm")
    with pytest.raises(UnsupportedRequest, match="package='fla'"):
        compat.provide("fla")


def test_selective_scan_without_extras() -> None:
    u, delta = torch.randn(B, CHANNELS, LENGTH, dtype=torch.bfloat16), torch.rand(B, CHANNELS, LENGTH)
    a, b = -torch.rand(CHANNELS, N), torch.randn(B, N, LENGTH)
    found = compat.selective_scan_fn(u, delta, a, b, b)
    zero = torch.zeros(CHANNELS)
    h = [torch.zeros(B, CHANNELS, N)]
    for t in range(LENGTH):
        step = delta[:, :, t, None]
        h.append(torch.exp(step * a) * h[-1] + step * b[:, None, :, t] * u[:, :, t, None].float())
    expected = torch.stack([(state * b[:, None, :, t]).sum(-1) for t, state in enumerate(h[1:])], -1)
    assert found.dtype == torch.bfloat16 and zero.sum() == 0
    torch.testing.assert_close(found, expected.bfloat16(), rtol=0.02, atol=0.02)


def test_selective_scan_of_complex_states() -> None:
    """Varying B and C have real and imaginary parts in turns."""
    make = torch.Generator().manual_seed(0)
    real = {"generator": make, "dtype": torch.float64}
    u, delta = (torch.randn(B, CHANNELS, LENGTH, **real) for _ in range(2))  # type: ignore[call-overload]
    a = torch.complex(-torch.rand(CHANNELS, N, **real), torch.randn(CHANNELS, N, **real))  # type: ignore[call-overload]
    b, c = (torch.randn(B, N, 2 * LENGTH, **real) for _ in range(2))  # type: ignore[call-overload]
    rest = [torch.randn(shape, **real) for shape in ((CHANNELS,), (B, CHANNELS, LENGTH), (CHANNELS,))]  # type: ignore[call-overload]

    def reference(*given: torch.Tensor) -> Tensors:
        u, delta, a, b, c, *rest = given
        b, c = (spread(torch.view_as_complex(each.unflatten(-1, (LENGTH, 2)))) for each in (b, c))
        return selective(u, delta, a, b, c, *rest)

    hold(lambda *given: compat.selective_scan_fn(*given, True, True), reference, u, delta, a, b, c, *rest)


def test_selective_scan_of_complex_states_and_8_bit_floats() -> None:
    """torch promotes no 8-bit floats: they are computed in float32, as those of real states are."""
    u, delta = torch.randn(B, CHANNELS, LENGTH).to(torch.float8_e4m3fn), torch.rand(B, CHANNELS, LENGTH)
    a = torch.complex(-torch.rand(CHANNELS, N), torch.randn(CHANNELS, N))
    b, c = torch.randn(B, N, 2 * LENGTH), torch.randn(B, N, 2 * LENGTH)
    found = compat.selective_scan_fn(u, delta, a, b, c)
    assert found.dtype == u.dtype
    expected = compat.selective_scan_fn(u.float(), delta, a, b, c).to(u.dtype)
    assert torch.equal(found.float(), expected.float())


@pytest.mark.parametrize("head_first", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("width", [(), (3,)])
def test_chunked_sums(width: tuple[int, ...], chunk: int | None, packed: bool, reverse: bool, head_first: bool) -> None:
    bounds = [0, 3, 3, 10] if packed else [0, 10]
    x = torch.randn(1 if packed else 2, 10, 5, *width, dtype=torch.float64)
    x = x.transpose(1, 2).contiguous() if head_first else x
    dim = 2 if head_first else 1

    def reference(x: torch.Tensor) -> torch.Tensor:
        pieces = []
        for start, stop in itertools.pairwise(bounds):
            for each in x.narrow(dim, start, stop - start).split(chunk or 10, dim):
                pieces.append(each.flip(dim).cumsum(dim).flip(dim) if reverse else each.cumsum(dim))
        return torch.cat(pieces, dim) * 0.5

    def call(x: torch.Tensor) -> torch.Tensor:
        offsets = torch.tensor(bounds) if packed else None
        options: dict[str, Any] = {"reverse": reverse, "scale": 0.5, "cu_seqlens": offsets, "head_first": head_first}
        if chunk is None:
            return compat.chunk_global_cumsum(x, output_dtype=None, **options)
        return compat.chunk_local_cumsum(x, chunk, output_dtype=None, **options)

    hold(call, reference, x)
    assert compat.chunk_local_cumsum(x.bfloat16(), 4, head_first=head_first).dtype == torch.float32


def test_a_recurrence_along_the_last_dimension() -> None:
    def reference(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        h, found = torch.zeros(2, 3, dtype=torch.float64), []
        for gate, token in zip(gates.unbind(-1), tokens.unbind(-1), strict=True):
            h = gate * h + token
            found.append(h)
        return torch.stack(found, -1)

    hold(compat.scan, reference, torch.rand(2, 3, 37, dtype=torch.float64), torch.randn(2, 3, 37, dtype=torch.float64))


@pytest.mark.parametrize("time_dim", [-2, 0, 1])
def test_advantages(time_dim: int) -> None:
    """A truncated episode keeps the value of its next state; a terminated one does not."""
    make = torch.Generator().manual_seed(0)
    value, following, reward = (torch.randn(3, 20, 1, generator=make, dtype=torch.float64) for _ in range(3))
    terminated = torch.rand(3, 20, 1, generator=make) < 0.2
    done = terminated | (torch.rand(3, 20, 1, generator=make) < 0.2)
    tensors = [each.movedim(-2, time_dim) for each in (value, following, reward, done, terminated)]

    def reference(value: torch.Tensor, following: torch.Tensor, reward: torch.Tensor, *ends: torch.Tensor) -> Tensors:
        going, lives = (1 - each.double() for each in ends)
        last, found = torch.zeros_like(reward.select(time_dim, 0)), []
        for t in reversed(range(reward.shape[time_dim])):
            at = [each.select(time_dim, t) for each in (value, following, reward, going, lives)]
            delta = at[2] + 0.9 * at[4] * at[1] - at[0]
            last = delta + 0.9 * 0.8 * at[3] * last
            found.append(last)
        advantage = torch.stack(found[::-1], time_dim)
        return advantage, advantage + value

    hold(lambda *t: compat.generalized_advantage_estimate(0.9, 0.8, *t, time_dim=time_dim), reference, *tensors)
    found = compat.generalized_advantage_estimate(0.9, 0.8, *tensors[:4], time_dim=time_dim)
    torch.testing.assert_close(found, reference(*tensors[:4], tensors[3]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_advantages_of_half_types(dtype: torch.dtype) -> None:
    """Gates, differences and sums are of float32: results have the errors of one rounding, also of a long sum."""
    make = torch.Generator().manual_seed(1)
    tensors = [torch.randn(1024, 8, generator=make).to(dtype) for _ in range(3)]
    done = torch.rand(1024, 8, generator=make) < 0.01
    found = compat.generalized_advantage_estimate(0.99, 0.95, *tensors, done, time_dim=0)
    exact = compat.generalized_advantage_estimate(0.99, 0.95, *(each.double() for each in tensors), done, time_dim=0)
    assert all(each.dtype == dtype for each in found)
    torch.testing.assert_close(found, tuple(each.to(dtype) for each in exact), rtol=torch.finfo(dtype).eps, atol=1e-3)


def test_weights_of_advantages_may_be_tensors() -> None:
    value, following, reward = torch.randn(3, 4, 20, dtype=torch.float64).unbind()
    done = torch.rand(4, 20) < 0.2
    expected = compat.generalized_advantage_estimate(0.9, 0.8, value, following, reward, done, time_dim=-1)
    for gamma, lmbda in (
        (torch.tensor(0.9), 0.8),
        (0.9, torch.full((4, 1), 0.8)),
        (torch.full((4, 20), 0.9), torch.tensor(0.8)),
    ):
        found = compat.generalized_advantage_estimate(gamma, lmbda, value, following, reward, done, time_dim=-1)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def stepwise(combine: Callable[..., Any], reverse: bool, *leaves: torch.Tensor) -> Tensors:
    """The scan of tensors of a tree of one tensor or of a tuple, item by item, along dimension 1."""
    order = range(leaves[0].shape[1])
    states: list[Any] = []
    for t in reversed(order) if reverse else order:
        item = tuple(each[:, t] for each in leaves)
        item = item if len(leaves) > 1 else item[0]
        states.append(combine(states[-1], item) if states else item)
    states = states[::-1] if reverse else states
    states = [each if isinstance(each, tuple) else (each,) for each in states]
    return tuple(torch.stack(each, 1) for each in zip(*states, strict=True))


COMBINES: dict[str, tuple[int, Callable[..., Any], str | None]] = {  # tensors, function, operator that it is
    "add": (1, torch.add, "sum"),
    "sum written the other way": (1, lambda x, y: y + x, "sum"),
    "product": (1, lambda x, y: x * y, "prod"),
    "maximum": (1, torch.maximum, "max"),
    "minimum": (1, lambda x, y: y.minimum(x), "min"),
    "logaddexp": (1, torch.logaddexp, "logcumsumexp"),
    "recurrence": (2, lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), "linear"),
    "recurrence, other order": (2, lambda x, y: (y[0] * x[0], y[1] + x[1] * y[0]), "linear"),
    "the older one": (1, lambda x, y: x + 0 * y, None),
    "probability of either": (1, lambda x, y: x + y - x * y, None),
    "greatest of the negatives": (1, lambda x, y: torch.maximum(x, y) * 1.0, None),
    "two sums": (2, lambda x, y: (x[0] + y[0], x[1] + y[1]), None),
    "rotation": (2, lambda x, y: (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]), None),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", COMBINES)
def test_associative_scan(name: str, reverse: bool) -> None:
    count, combine, operator = COMBINES[name]
    leaves = [torch.rand(3, 37, dtype=torch.float64) - 1.5 for _ in range(count)]

    def call(*leaves: torch.Tensor) -> Any:
        return compat.associative_scan(combine, leaves if count > 1 else leaves[0], 1, reverse=reverse)

    def pairs(older: tuple[Any, ...], newer: tuple[Any, ...]) -> tuple[Any, ...]:
        found = combine(*((older, newer) if count > 1 else (older[0], newer[0])))
        return found if count > 1 else (found,)

    assert compat._name_of(pairs, (torch.float64,) * count) == operator
    hold(call, lambda *leaves: stepwise(combine, reverse, *leaves), *leaves)
    with scanops.emulate():
        found = call(*leaves)
    torch.testing.assert_close(found if count > 1 else (found,), stepwise(combine, reverse, *leaves))


def test_trees_and_integers() -> None:
    x = torch.randint(-5, 5, (2, 9), dtype=torch.int32)
    found = compat.associative_scan(lambda a, b: {"k": a["k"] + b["k"]}, {"k": x}, 1)
    assert found["k"].dtype == torch.int32 and torch.equal(found["k"], x.cumsum(1).int())
    flags = x > 0
    assert torch.equal(compat.associative_scan(torch.logical_or, flags, 1), flags.cumsum(1) > 0)
    assert torch.equal(compat.associative_scan(lambda a, b: a | b, flags, 1), flags.cumsum(1) > 0)


def test_results_have_the_dtypes_of_the_function() -> None:
    """Sums of bools are bools, and what is computed of half types in float32 is returned in float32."""
    flags = torch.tensor([[False, True, False, True]])
    for function, expected in (
        (torch.add, [False, True, True, True]),
        (lambda a, b: a * b, [False] * 4),
        (torch.maximum, [False, True, True, True]),
    ):
        for found in by_both(lambda function=function: compat.associative_scan(function, flags, 1)):  # type: ignore[misc]
            assert found.dtype == torch.bool and found[0].tolist() == expected
    x = torch.full((600,), 1.0, dtype=torch.bfloat16)
    for found in by_both(lambda: compat.associative_scan(lambda a, b: a.float() + b.float(), x, 0)):
        assert found.dtype == torch.float32 and torch.equal(found, torch.arange(1, 601).float())
    gates, whole = x[:3].float(), torch.arange(1, 4)
    pair = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
    for items, dtype in ((x[:3], torch.float32), (whole.int(), torch.int32)):
        first = gates if dtype == torch.float32 else whole.int()
        for found in by_both(lambda first=first, items=items: compat.associative_scan(pair, (first, items), 0)):  # type: ignore[misc]
            assert found[0].dtype == found[1].dtype == dtype
            assert found[1].tolist() == ([1, 2, 3] if dtype == torch.float32 else [1, 4, 15])
    by_value = lambda a, b: (torch.max(a[0], b[0]), torch.where(b[0] > a[0], b[1], a[1]))  # noqa: E731
    values = torch.tensor([2.0, 1.0, 5.0])
    for found in by_both(lambda: compat.associative_scan(by_value, (values, whole), 0)):
        assert found[0].tolist() == [2, 2, 5] and found[1].tolist() == [1, 1, 3]


def test_results_lie_in_the_tree_by_their_keys() -> None:
    def combine(older: Any, newer: Any) -> Any:  # whose keys are in another order
        return {"item": newer["gate"] * older["item"] + newer["item"], "gate": older["gate"] * newer["gate"]}

    gates, items = torch.full((4,), 0.5), torch.arange(1.0, 5.0)
    for found in by_both(lambda: compat.associative_scan(combine, {"gate": gates, "item": items}, 0)):
        assert found["gate"].tolist() == [0.5, 0.25, 0.125, 0.0625]
        assert found["item"].tolist() == [1.0, 2.5, 4.25, 6.125]


def by_both(call: Callable[[], Any]) -> Any:
    """Yield what a call returns by PyTorch's operators and by emulated kernels."""
    yield call()
    with scanops.emulate():
        yield call()


def test_equal_functions_of_a_program_are_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated call traces nothing; a function of another number is another operator."""
    pair, traced = (torch.rand(2, 9), torch.rand(2, 9)), []
    monkeypatch.setattr(operators, "values_of", lambda *given, of=operators.values_of: traced.append(1) or of(*given))

    def rotate(scale: float) -> tuple[torch.Tensor, ...]:
        def combine(a: Any, b: Any) -> Any:
            return a[0] * b[0] - scale * a[1] * b[1], a[0] * b[1] + a[1] * b[0]

        with scanops.emulate():
            return compat.associative_scan(combine, pair, 1)  # type: ignore[no-any-return]

    monkeypatch.setattr(functions, "_trace", lambda *given, of=functions._trace: traced.append(1) or of(*given))

    def estimate(gamma: float) -> Any:
        with scanops.emulate():
            return compat.generalized_advantage_estimate(gamma, 0.9, *pair, pair[0], pair[1] > 2, time_dim=0)

    for call in (rotate, estimate):
        one = call(1.0)
        asked = len(traced)
        assert asked and all(map(torch.equal, call(1.0), one)) and len(traced) == asked
        assert not torch.equal(call(0.5)[0], one[0]) and len(traced) > asked


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_scales_are_not_rounded_to_the_dtype_of_items(dtype: torch.dtype) -> None:
    """Items, sums and results may have three dtypes: a scale acts in that of the sums."""
    result = torch.float64 if dtype == torch.float64 else torch.float32
    for scale in (1.4426950408889634, torch.tensor(1.4426950408889634, dtype=torch.float64), 1e5, 1e-9):
        g, exact = torch.full((1, 64, 2), -1.0, dtype=dtype), -64 * float(scale)
        for function in (
            lambda g=g, scale=scale: compat.chunk_local_cumsum(g, 64, scale=scale, output_dtype=result),
            lambda g=g, scale=scale: compat.chunk_global_cumsum(g, scale=scale, output_dtype=result),
        ):
            for found in by_both(function):
                assert abs(found[0, -1, 0].item() / exact - 1) < (1e-14 if result == torch.float64 else 1e-6)


@pytest.mark.parametrize("given", [0.999, torch.tensor(0.999), torch.tensor(0.999, dtype=torch.float64)], ids=str)
def test_discounts_are_not_rounded_to_the_dtype_of_values(given: Any) -> None:
    steps = 600
    value, ends = torch.zeros(steps, 1, dtype=torch.bfloat16), torch.zeros(steps, 1, dtype=torch.bool)
    exact = sum(0.999**n for n in range(steps))
    for reward in (torch.ones(steps, 1), torch.ones(steps, 1, dtype=torch.bfloat16), torch.ones(steps, 1).double()):
        for found in by_both(
            lambda reward=reward: compat.generalized_advantage_estimate(given, 1.0, value, value, reward, ends)  # type: ignore[misc]
        ):
            near = 4e-3 if reward.dtype == torch.bfloat16 else 1e-4
            assert [each.dtype for each in found] == [reward.dtype] * 2
            assert all(abs(each[0].item() / exact - 1) < near for each in found)


@pytest.mark.parametrize(
    ("batch", "channels", "states", "length"), [(0, 2, 3, 4), (2, 2, 3, 0), (2, 0, 3, 4), (2, 2, 0, 4)]
)
def test_selective_scan_of_no_items(batch: int, channels: int, states: int, length: int) -> None:
    u, a = torch.rand(batch, channels, length, requires_grad=True), -torch.rand(channels, states)
    for b in (torch.rand(batch, states, length), torch.rand(batch, 1, states, length), torch.rand(channels, states)):
        for y, last in by_both(lambda b=b: compat.selective_scan_fn(u, u, a, b, b, return_last_state=True)):  # type: ignore[misc]
            assert y.shape == u.shape and last.shape == (batch, channels, states) and not y.any() and not last.any()
            assert torch.autograd.grad(y.sum(), u)[0].shape == u.shape


def test_selective_scan_computes_in_the_dtype_of_u() -> None:
    """float64 beside float32 step sizes; and float32 beside half types."""
    make = torch.Generator().manual_seed(0)
    u, delta = (torch.rand(B, CHANNELS, LENGTH, generator=make, dtype=torch.float64) for _ in range(2))
    a, b = -torch.rand(CHANNELS, N, generator=make), torch.rand(B, N, LENGTH, generator=make)
    delta = delta.float()
    exact = compat.selective_scan_fn(u, delta.double(), a.double(), b.double(), b.double())
    for found in by_both(lambda: compat.selective_scan_fn(u, delta, a, b, b)):
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "selective_state_update": lambda x: compat.selective_state_update(
        x[:, :, :3].clone(), x[:, :, 0], x[:, :, 1], -x[0, :, :3], x[:, 0, :3], x[:, 1, :3], x[0, :, 4]
    ),
    "selective_scan_fn": lambda x: compat.selective_scan_fn(x, x, -x[0, :, :3].abs(), x[:, :3], x[:, :3]),
    "selective_scan_fn, state": lambda x: compat.selective_scan_fn(
        x, x, -x[0, :, :3].abs(), x[:, :3], x[:, 1:], x[0, :, 0], x, x[0, :, 1], True, True
    ),
    "chunk_local_cumsum": lambda x: compat.chunk_local_cumsum(x, 2, scale=0.5),
    "chunk_local_cumsum, a shorter chunk": lambda x: compat.chunk_local_cumsum(x, 3, reverse=True, scale=0.5),
    "chunk_global_cumsum": lambda x: compat.chunk_global_cumsum(x, scale=0.5, head_first=True),
    "scan": lambda x: compat.scan(x, x),
    "generalized_advantage_estimate": lambda x: compat.generalized_advantage_estimate(
        0.9, 0.8, x, x, x, x > 0.5, time_dim=-1
    ),
    "associative_scan, named": lambda x: compat.associative_scan(torch.add, x, 1),
    "associative_scan, recurrence": lambda x: compat.associative_scan(
        lambda a, b: {"h": b["g"] * a["h"] + b["h"], "g": a["g"] * b["g"]}, {"g": x, "h": x}, 1
    ),
    "associative_scan, own": lambda x: compat.associative_scan(lambda a, b: a + b - a * b, x, 1, reverse=True),
}


def test_every_function_is_among_the_calls() -> None:
    assert {name.partition(",")[0] for name in CALLS} == {*compat.__all__} - {"provide"}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_compiled_exported_and_batched(name: str) -> None:
    call, x = CALLS[name], torch.rand(2, 4, 6)

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return call(x)

    torch.compiler.reset()  # code that all cases share may be compiled so many times
    expected = call(x)
    for found in (
        torch.compile(call, backend="eager", fullgraph=True)(x),
        torch.export.export(Layer(), (x,)).module()(x),
        torch.export.export(Layer(), (x,), strict=True).module()(x),
        pytree.tree_map(lambda y: y[1], torch.vmap(call)(torch.stack([x + 1, x]))),
    ):
        torch.testing.assert_close(found, expected)


X = torch.rand(2, 4, 5)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "u": (lambda: compat.selective_scan_fn(X[0], X[0], X[0], X[0], X[0]), r"u.shape=\(4, 5\)"),
    "delta": (lambda: compat.selective_scan_fn(X, X[:1], X[0], X, X), r"delta.shape=\(1, 4, 5\)"),
    "B": (lambda: compat.selective_scan_fn(X, X, torch.rand(4, 3), X, X), r"B.shape=\(2, 4, 5\)"),
    "D": (lambda: compat.selective_scan_fn(X, X, torch.rand(4, 4), X, X, X), r"D.shape=\(2, 4, 5\)"),
    "sums": (lambda: compat.chunk_local_cumsum(X[0], 2), r"shape \(4, 5\)"),
    "batch": (lambda: compat.chunk_global_cumsum(X, cu_seqlens=torch.tensor([0, 4])), "a batch of 2"),
    "gates": (lambda: compat.scan(X[:1], X), r"gates.shape=\(1, 4, 5\)"),
    "done": (lambda: compat.generalized_advantage_estimate(0.9, 0.9, X, X, X, X[0]), r"done.shape=\(4, 5\)"),
    "time_dim": (
        lambda: compat.generalized_advantage_estimate(0.9, 0.9, *[X[0, 0]] * 4),
        r"shape \(5,\): got time_dim=-2",
    ),
    "combine_fn": (lambda: compat.associative_scan(3, X, 1), "combine_fn=3"),  # type: ignore[arg-type]
    "combine_mode": (lambda: compat.associative_scan(torch.add, X, 1, combine_mode="x"), "combine_mode='x'"),
    "leaves": (lambda: compat.associative_scan(lambda a, b: a, (X,) * 5, 1), "5 tensors"),
    "shapes": (lambda: compat.associative_scan(lambda a, b: a, (X, X[0]), 1), r"xs.shape=\(4, 5\)"),
    "not pointwise": (lambda: compat.associative_scan(lambda a, b: a @ b, X, 1), "not supported"),
    "other tensors": (lambda: compat.associative_scan(lambda a, b: a + b + X, X, 1), "not an argument"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    call, said = WRONG[name]
    with pytest.raises(UnsupportedRequest, match=said):
        call()
