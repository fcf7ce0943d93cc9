"""Functions of other packages with their own names and arguments, computed by scanops: change one import.

``selective_scan_fn`` and ``selective_state_update`` of mamba_ssm, which ``provide`` lets other packages import where
that package is not installed, ``chunk_local_cumsum`` and ``chunk_global_cumsum`` of fla, ``scan`` of
accelerated_scan, ``generalized_advantage_estimate`` of torchrl, and ``associative_scan`` of torch. Each has gradients
with respect to every tensor of a floating dtype, and runs on CPU tensors as well.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import math
import numbers
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from scanops import api, relatives
from scanops.codegen.operators.recurrences import EXPRESSIONS
from scanops.codegen.spec_checks import MAX_LENGTH
from scanops.errors import DimensionOutOfRange, UnsupportedRequest, format_value
from scanops.fusion.functions import follow, raise_while_tracing, repeat_followed, trace_dtypes, trace_fusion
from scanops.fusion.operators import FieldOperator
from scanops.fusion.operators import operator as operator_of_fields
from scanops.fusion.trace_keys import key_of
from scanops.fusion.tracing import OPERATION_NAMES, apply_operation
from scanops.ops import schema
from scanops.requests import checks
from scanops.requests.constants import make_constant
from scanops.requests.segments import check_offsets, flags_along
from scanops.requests.torch_state import is_symbol

__all__ = [
    "associative_scan",
    "chunk_global_cumsum",
    "chunk_local_cumsum",
    "generalized_advantage_estimate",
    "provide",
    "scan",
    "selective_scan_fn",
    "selective_state_update",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the output of a selective state-space layer: mamba_ssm's ``selective_scan_fn``.

    With ``d = softplus(delta + delta_bias)`` each channel and state has ``h[t] = exp(d[t] A) h[t-1] + d[t] B[t] u[t]``;
    the result is ``(sum over states of C[t] h[t] + D u[t]) * silu(z[t])``. All of that is computed in one kernel, which
    writes the result alone. Computed in float32, or in float64 for a float64 u.

    Args:
        u: the input, [batch, channels, length].
        delta: the step sizes, of u's shape.
        A: [channels, states], real or complex; at most 256 states.
        B: [channels, states], or varying with time: [batch, states, length] or [batch, groups, states, length]. With a
            complex A, complex or, where it varies, with real and imaginary parts in turns along a length twice as long.
        C: as B.
        D: [channels]; weights of u in the result.
        z: a tensor of u's shape; the result is multiplied by ``silu(z)``.
        delta_bias: [channels]; added to delta.
        delta_softplus: pass the step sizes through softplus.
        return_last_state: also return the last h, [batch, channels, states].
        cu_seqlens: boundaries of packed sequences along the length, [0, ..., length]; h starts again from 0 at each.
        initial_state: h before the first item, [batch, channels, states]; with ``cu_seqlens`` of the first sequence.

    Returns:
        A tensor of u's shape and dtype, which lies in memory as u does if u's channels are contiguous; with
        ``return_last_state`` a pair of that and of the last state, with ``cu_seqlens`` that of the last sequence.

    Raises:
        UnsupportedRequest: shapes that do not go together.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch
        >>> from scanops.compat import selective_scan_fn
        >>> one = torch.ones(1, 1, 3)
        >>> selective_scan_fn(one, one, torch.zeros(1, 1), one, one)  # A = 0 forgets nothing
        tensor([[[1., 2., 3.]]])

    Gradient: by one kernel, which computes h again from states that were saved every so many steps.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023), algorithm 2.
    """
    who = "selective_scan_fn"
    others = _present(D=D, z=z, delta_bias=delta_bias, initial_state=initial_state)
    _check_tensors(who, u=u, delta=delta, A=A, B=B, C=C, **others)
    _check_real(who, u=u, delta=delta, **_present(D=D, z=z, delta_bias=delta_bias))
    _check_flags(who, delta_softplus=delta_softplus, return_last_state=return_last_state)
    batch, channels, length = _sizes(who, "u", u, "[batch, channels, length]", 3)
    wide = _wide(u.dtype)
    states = _sizes(who, "A", A, "[channels, states]", 2)[1]
    check = functools.partial(_check_shape, who)
    check("delta", delta, (batch, channels, length))
    check("A", A, (channels, states))
    for name, each in (("D", D), ("delta_bias", delta_bias)):
        check(name, each, (channels,))
    check("z", z, (batch, channels, length))
    check("initial_state", initial_state, (batch, channels, states))
    _check_memory(who, "u", u, (batch, channels, length))
    groups = next((each.shape[1] for each in (B, C) if each.ndim == 4), 1)
    if not groups or channels % groups:
        raise _make_error(who, f"groups that divide {channels} channels", f"{groups} groups", "repeat B")
    if not states:
        none = u.new_zeros(channels, 1)  # a state that stays 0
        y = selective_scan_fn(u, delta, none, none, none, D, z, delta_bias, delta_softplus, cu_seqlens=cu_seqlens)
        return (y, u.new_zeros(batch, channels, 0, dtype=wide)) if return_last_state else y  # type: ignore[return-value]
    split = groups, channels // groups

    def by_channel(tensor: Tensor) -> Tensor:  # batch, group, channel of the group, state, time
        return tensor.reshape(1, *split, tensor.shape[1] if tensor.ndim > 1 else 1, 1)

    def varying(name: str, tensor: Tensor) -> Tensor:
        if tensor.ndim == 2:
            check(name, tensor, (channels, states))
            return by_channel(tensor)
        if A.is_complex() and not tensor.is_complex() and tensor.shape[-1] == 2 * length:
            tensor = torch.view_as_complex(tensor.to(wide).reshape(*tensor.shape[:-1], length, 2))
        middle = (groups,) if tensor.ndim == 4 else ()
        check(name, tensor, (batch, *middle, states, length))
        return (tensor.unsqueeze(1) if tensor.ndim == 3 else tensor).unsqueeze(2)

    def by_time(tensor: Tensor) -> Tensor:
        return _split(tensor, split).unsqueeze(3)

    given = {"u": by_time(u), "delta": by_time(delta), "a": by_channel(A), "b": varying("B", B), "c": varying("C", C)}
    given |= {} if delta_bias is None else {"bias": by_channel(delta_bias)}
    start = None if initial_state is None else _split(initial_state, split)
    if any(each.is_complex() for each in given.values()):
        segments = _first_segment_of(given["u"], cu_seqlens, start, 4)
        return _scan_complex_states(given, D, z, delta_softplus, return_last_state, segments, start)
    given |= {} if D is None else {"D": by_channel(D)}
    given |= {} if z is None else {"z": by_time(z)}
    gate_and_item, output, finish = _selective_functions(tuple(given), delta_softplus, u.dtype, wide)
    # Dimensions in the order of u's memory: then the result, which is contiguous, lies as u does.
    by_channels = u.stride(1) == 1 and channels > 1
    order, dim, states_dim = ((0, 4, 1, 2, 3), 1, 4) if by_channels else ((0, 1, 2, 3, 4), 4, 3)
    tensors = tuple(each.permute(order) for each in given.values())
    y, last = api.scan(
        tensors,
        "linear",
        dim,
        dtype=wide,
        map=gate_and_item,
        then=output,
        sum=states_dim,
        finish=finish,
        initial=start,
        return_final=True,
        **_first_segment_of(tensors[0], cu_seqlens, start, dim),
    )
    y = y.flatten(2).transpose(1, 2) if by_channels else y.flatten(1, 2)
    return (y, last.flatten(1, 2)) if return_last_state else y


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that a selective scan of an input of ``dtype`` is computed in; 8-bit floats do not promote."""
    return torch.promote_types(dtype, torch.float32) if dtype.itemsize > 1 else torch.float32


def _split(tensor: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Return the tensor with its channels in groups."""
    found: Tensor = tensor.unflatten(1, sizes)  # type: ignore[no-untyped-call]
    return found


def _first_segment_of(x: Tensor, offsets: Tensor | None, start: Tensor | None, dim: int) -> dict[str, Any]:
    """Return segments of which the first alone starts from a state: offsets, or head flags beside one."""
    if offsets is None or start is None:
        return {"offsets": offsets}
    return {"segment_starts": flags_along(None, check_offsets("selective_scan_fn", offsets, x, dim), x, dim)}


def _selective_functions(
    names: tuple[str, ...], softplus: bool, dtype: torch.dtype, wide: torch.dtype
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions of a selective scan, in ``wide``, of the tensors with these names, whose result has a dtype."""

    def gate_and_item(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        of = dict(zip(names, [each.to(wide) for each in tensors], strict=True))
        d = of["delta"] + of["bias"] if "bias" in names else of["delta"]
        d = functional.softplus(d) if softplus else d
        return torch.exp(d * of["a"]), (d * of["u"]) * of["b"]

    def output(h: Tensor, *tensors: Tensor) -> Tensor:
        return h * tensors[names.index("c")].to(wide)

    def finish(y: Tensor, *tensors: Tensor) -> Tensor:
        of = dict(zip(names, [each.to(wide) for each in tensors], strict=True))
        y = y + of["u"] * of["D"] if "D" in names else y
        y = y * functional.silu(of["z"]) if "z" in names else y
        return y.to(dtype)

    return gate_and_item, output, finish


def _scan_complex_states(
    given: dict[str, Tensor],
    D: Tensor | None,
    z: Tensor | None,
    softplus: bool,
    return_last_state: bool,
    segments: dict[str, Any],
    start: Tensor | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The selective scan of complex states, which are written to memory."""
    dtype = given["u"].dtype
    wide = _wide(dtype)
    u, d = given["u"].to(wide), given["delta"].to(wide)
    d = d + given["bias"].to(wide) if "bias" in given else d
    d = functional.softplus(d) if softplus else d
    h, last = api.linear_scan(
        torch.exp(d * given["a"]),
        d * u * given["b"],
        -1,
        initial=start,
        return_final=True,
        **segments,
    )
    y = (2 * (h * given["c"]).real.sum(3)).flatten(1, 2)
    y = y if D is None else y + u.squeeze(3).flatten(1, 2) * D.unsqueeze(-1)
    y = y if z is None else y * functional.silu(z.to(wide))
    y = y.to(dtype)
    return (y, last.flatten(1, 2)) if return_last_state else y


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """Return the output of one step of decoding, and update the state in place: mamba_ssm's function of that name.

    With ``d = softplus(dt + dt_bias)`` the state becomes ``exp(d A) state + d B x``, and the result is
    ``(sum over states of C state + D x) * silu(z)``. Shapes are those with heads, or all of them without.

    Args:
        state: [batch, heads, channels, states]; overwritten.
        x: the input, [batch, heads, channels].
        dt: the step sizes, of x's shape.
        A: [heads, channels, states].
        B: [batch, groups, states], where groups divide heads; without heads [batch, states].
        C: as B.
        D: [heads, channels]; weights of x in the result.
        z: a tensor of x's shape; the result is multiplied by ``silu(z)``.
        dt_bias: [heads, channels]; added to dt.
        dt_softplus: pass the step sizes through softplus.
        state_batch_indices: [batch]; which entry of the state's first dimension each item of the batch has.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        UnsupportedRequest: shapes that do not go together.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch
        >>> from scanops.compat import selective_state_update
        >>> state, one = torch.ones(1, 1, 2), torch.ones(1, 1)
        >>> selective_state_update(state, one, one, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2))
        tensor([[4.]])
        >>> state
        tensor([[[2., 2.]]])

    Gradient: none, as of mamba_ssm's.
    """
    who, others = "selective_state_update", _present(D=D, z=z, dt_bias=dt_bias)
    _check_tensors(who, state=state, x=x, dt=dt, A=A, B=B, C=C, **others)
    _check_real(who, state=state, x=x, dt=dt, A=A, B=B, C=C, **others)
    _check_tensors(who, state=state, **_present(state_batch_indices=state_batch_indices))
    _check_flags(who, dt_softplus=dt_softplus)
    heads_there = state.ndim == 4
    shape = "[batch, heads, channels, states]" if heads_there else "[batch, channels, states]"
    *_, channels, states = _sizes(who, "state", state, shape, 4 if heads_there else 3)
    heads: tuple[int, ...] = tuple(state.shape[1:2]) if heads_there else ()
    batch = _sizes(who, "x", x, "of the state without states", 2 + heads_there)[0]
    lines = (*heads, channels)
    groups: tuple[int, ...] = tuple(B.shape[1:2]) if heads_there else ()
    for name, each, wanted in (
        ("x", x, (batch, *lines)),
        ("dt", dt, (batch, *lines)),
        ("A", A, (*lines, states)),
        ("B", B, (batch, *groups, states)),
        ("C", C, (batch, *groups, states)),
        ("D", D, lines),
        ("z", z, (batch, *lines)),
        ("dt_bias", dt_bias, lines),
        ("state_batch_indices", state_batch_indices, (batch,)),
    ):
        _check_shape(who, name, each, wanted)
    if groups and heads[0] % groups[0]:
        raise _make_error(who, f"groups that divide {heads[0]} heads", f"{groups[0]} groups", "repeat B")
    split = groups[0] if groups else 1

    def by_line(tensor: Tensor, *sizes: int) -> Tensor:  # batch, group, head of the group, channel, state, step
        return tensor.reshape(-1, split, heads[0] // split if heads else 1, channels, *sizes, 1)

    def shared(tensor: Tensor) -> Tensor:
        return tensor.reshape(batch, split, 1, 1, states, 1)

    with torch.no_grad():
        given = {"u": by_line(x, 1), "delta": by_line(dt, 1), "a": by_line(A, states), "b": shared(B), "c": shared(C)}
        for name, each in (("bias", dt_bias), ("D", D), ("z", z)):
            given |= {} if each is None else {name: by_line(each, 1)}
        rows = None if state_batch_indices is None else state_batch_indices.long()
        before = state if rows is None else state.index_select(0, rows)
        wide = _wide(x.dtype)
        gate_and_item, output, finish = _selective_functions(tuple(given), dt_softplus, x.dtype, wide)
        found: tuple[Tensor, Tensor] = api.scan(
            tuple(given.values()),
            "linear",
            5,
            dtype=wide,
            map=gate_and_item,
            then=output,
            sum=4,
            finish=finish,
            initial=before.reshape(batch, split, -1, channels, states),
            return_final=True,
        )
        y, last = found
        after = last.reshape(before.shape).to(state.dtype)
        if rows is None:
            state.copy_(after)
        else:
            state.index_copy_(0, rows, after)
        return y.reshape(x.shape)


def chunk_local_cumsum(
    g: Tensor,
    chunk_size: int,
    reverse: bool = False,
    scale: float | Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    output_dtype: torch.dtype | None = torch.float,
    chunk_indices: Tensor | None = None,
) -> Tensor:
    """Return cumulative sums along time that start again in each chunk: ``fla.ops.utils.chunk_local_cumsum``.

    Args:
        g: [batch, time, heads] or [batch, time, heads, dim].
        chunk_size: the number of items in a chunk; any positive number.
        reverse: sum from the end of each chunk.
        scale: a number, or a tensor of no dimension, that multiplies the result.
        cu_seqlens: boundaries of packed sequences, for a batch of 1; chunks start again in each sequence.
        head_first: g is [batch, heads, time] or [batch, heads, time, dim].
        output_dtype: the dtype of the result and of the sums; None for g's.
        chunk_indices: ignored: the kernel finds the chunks itself.

    Returns:
        A contiguous tensor of g's shape.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch
        >>> from scanops.compat import chunk_local_cumsum
        >>> chunk_local_cumsum(torch.ones(1, 5, 1), 2).flatten()
        tensor([1., 2., 1., 2., 1.])

    Gradient: the same sums of the gradient in the other direction.

    When to use it: wherever fla's Triton kernel does not run, and for chunks of any number of items. On an H100, 8 x
    8192 x 32 in chunks of 64 take 8 us, PyTorch's reshape and cumsum 28 us; fla's own was not measured beside it.
    """
    return _cumsum("chunk_local_cumsum", g, chunk_size, reverse, scale, cu_seqlens, head_first, output_dtype)


def chunk_global_cumsum(
    s: Tensor,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    scale: float | Tensor | None = None,
    head_first: bool = False,
    output_dtype: torch.dtype | None = torch.float,
) -> Tensor:
    """Return cumulative sums along time, of whole sequences: ``fla.ops.utils.chunk_global_cumsum``.

    Args:
        s: [batch, time, heads] or [batch, time, heads, dim].
        reverse: sum from the end of each sequence.
        cu_seqlens: boundaries of packed sequences, for a batch of 1.
        scale: a number, or a tensor of no dimension, that multiplies the result.
        head_first: s is [batch, heads, time] or [batch, heads, time, dim].
        output_dtype: the dtype of the result and of the sums; None for s's.

    Returns:
        A contiguous tensor of s's shape.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch
        >>> from scanops.compat import chunk_global_cumsum
        >>> chunk_global_cumsum(torch.ones(1, 5, 1), cu_seqlens=torch.tensor([0, 3, 5])).flatten()
        tensor([1., 2., 3., 1., 2.])

    Gradient: the same sums of the gradient in the other direction.

    When to use it: on GPUs in place of ``torch.cumsum`` along time, which takes 2,976 us for 8 x 8192 x 32 on an H100
    where this takes 11 us; fla's own was not measured beside it.
    """
    return _cumsum("chunk_global_cumsum", s, None, reverse, scale, cu_seqlens, head_first, output_dtype)


def _cumsum(
    who: str,
    x: Tensor,
    chunk: int | None,
    reverse: bool,
    scale: float | Tensor | None,
    cu_seqlens: Tensor | None,
    head_first: bool,
    dtype: torch.dtype | None,
) -> Tensor:
    _check_tensors(who, **{"the input": x})
    _check_flags(who, reverse=reverse, head_first=head_first)
    if x.ndim not in (3, 4):
        hint = "add a dimension: x.unsqueeze(-1)"
        raise _make_error(who, "[batch, time, heads] or [batch, time, heads, dim]", f"shape {tuple(x.shape)}", hint)
    if cu_seqlens is not None and x.shape[0] != 1:
        raise _make_error(
            who, "a batch of 1 beside cu_seqlens", f"a batch of {x.shape[0]}", "pack the batch: flatten(0, 1)"
        )
    dim = 2 if head_first else 1
    _check_memory(who, "the input", x, tuple(x.shape), dim)
    weight = None if scale is None else _check_factor(who, "scale", scale, x, ())
    if isinstance(weight, int | float):
        is_single = x.is_floating_point() and torch.float64 not in (x.dtype, dtype)
        wide = torch.float32 if is_single else torch.float64  # that products are computed in
        made = functools.partial(torch.full, (), weight, dtype=wide, device=x.device)
        weight = make_constant(made, x.device, repr(float(weight)), wide)
    dtype = x.dtype if dtype is None else dtype
    return api.cumsum(x, dim, mask=weight, chunk=chunk, reverse=reverse, offsets=cu_seqlens, dtype=dtype)


def scan(gates: Tensor, tokens: Tensor) -> Tensor:
    """Return ``h[t] = gates[t] * h[t-1] + tokens[t]`` along the last dimension: ``accelerated_scan.warp.scan``.

    Args:
        gates: [batch, channels, length]; any length.
        tokens: a tensor of the same shape.

    Returns:
        h, of the same shape and dtype.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch
        >>> from scanops.compat import scan
        >>> scan(torch.full((1, 1, 3), 0.5), torch.tensor([[[8.0, 0.0, 0.0]]]))
        tensor([[[8., 4., 2.]]])

    Gradient: a linear recurrence in the other direction, by a kernel, with respect to both.

    When to use it: on GPUs for any length and dtype; forward and backward on an H100, float32 rows of 2048 take 0.77 of
    accelerated_scan's time, rows of 65536 0.91. On a CPU it takes about as long as a loop.
    """
    _check_tensors("scan", tokens=tokens, gates=gates)
    _check_shape("scan", "gates", gates, tuple(tokens.shape))
    _check_memory("scan", "tokens", tokens, tuple(tokens.shape), -1)
    return api.linear_scan(gates, tokens, -1)


def generalized_advantage_estimate(
    gamma: float | Tensor,
    lmbda: float | Tensor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> tuple[Tensor, Tensor]:
    """Return advantages and value targets: ``torchrl.objectives.value.functional.generalized_advantage_estimate``.

    ``A[t] = delta[t] + gamma lmbda (1 - done[t]) A[t+1]`` with ``delta[t] = reward[t] + gamma (1 - terminated[t])
    next_state_value[t] - state_value[t]``. An episode that is truncated ends the sum and keeps the value of its next
    state; one that is terminated has no next state.

    Args:
        gamma: the discount: a number, which is a constant of the kernel, or a tensor that broadcasts to the shape of
            reward. Pass a 0-d tensor for one that changes from call to call.
        lmbda: the exponential weight: likewise.
        state_value: values of the states, of one shape with the next four; by default [..., time, 1].
        next_state_value: values of the states after each step, before any reset.
        reward: rewards of the steps.
        done: True where an episode ends, terminated or truncated; bool or numbers 0 and 1.
        terminated: True where an episode ends in a terminal state; by default ``done``.
        time_dim: the dimension of time. Of tensors [environments, time] it is -1: another one scans environments, and
            nothing tells.

    Returns:
        A pair of tensors of that shape and of the dtype of rewards and values: advantages, and ``advantages +
        state_value``. Half types are computed in float32, in one kernel, and rounded once.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        DimensionOutOfRange: ``time_dim`` is not a dimension of reward.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch
        >>> from scanops.compat import generalized_advantage_estimate
        >>> value, reward = torch.zeros(3, 1), torch.ones(3, 1)
        >>> done = torch.tensor([[False], [True], [False]])
        >>> generalized_advantage_estimate(0.5, 1.0, value, value, reward, done)[0].flatten()
        tensor([1.5000, 1.0000, 1.0000])

    When to use it: on GPUs: one kernel in place of some five per step, 18 us for 1024 steps of 256 environments on an
    H100, where a loop takes 105 ms, and no memory but the results. On a CPU a loop may be faster.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2016).
    """
    who = "generalized_advantage_estimate"
    given = {"reward": reward, "state_value": state_value, "next_state_value": next_state_value, "done": done}
    given |= _present(terminated=terminated)
    _check_tensors(who, **given)
    _check_real(who, **given)
    shape = tuple(reward.shape)
    for name, each in given.items():
        _check_shape(who, name, each, shape)
    time_dim = _check_dim(who, "time_dim", time_dim, reward)
    _check_memory(who, "reward", reward, shape, time_dim)
    factors = [_check_factor(who, *each, reward, shape) for each in (("gamma", gamma), ("lmbda", lmbda))]
    whole = [each for each in factors if isinstance(each, Tensor) and each.ndim]
    floats = [each.dtype for each in (reward, state_value, next_state_value, *whole) if each.is_floating_point()]
    floats = [each if each.itemsize > 1 else torch.float32 for each in floats]
    dtype = functools.reduce(torch.promote_types, floats) if floats else torch.get_default_dtype()
    wide = torch.promote_types(dtype, torch.float32)
    # of a tensor None: it is an operand behind the others
    constants = tuple(None if isinstance(each, Tensor) else each for each in factors)

    def gate_and_item(reward: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        value, following, ends, *rest = (each.to(wide) for each in others)
        terminal = ends if terminates_alike else rest.pop(0)
        discount, weight = (rest.pop(0) if each is None else each for each in constants)
        return discount * weight * (1 - ends), reward.to(wide) + discount * (1 - terminal) * following - value

    def outputs(advantage: Tensor, reward: Tensor, value: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        return advantage.to(dtype), (advantage + value.to(wide)).to(dtype)

    terminates_alike = terminated is None
    operands = (*given.values(), *(each for each in factors if isinstance(each, Tensor)))
    advantage, target = api.scan(
        operands, "linear", time_dim, dtype=wide, reverse=True, map=gate_and_item, then=outputs
    )
    return advantage, target


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Return the inclusive scan of ``xs`` along ``dim`` by a function: torch's ``associative_scan``, in eager code too.

    In the versions of torch that scanops supports it is ``torch._higher_order_ops.associative_scan``, which needs
    ``torch.compile`` on a GPU.

    A function that is the sum, the product, the maximum, the minimum, ``logaddexp`` or a bitwise or logical operation
    of two tensors runs the kernel of that operator, and ``(a, b), (c, d) -> (a * c, b * c + d)`` those of products and
    linear recurrences. Any other pointwise function becomes an operator of scanops, as ``scanops.operator`` makes it.

    Args:
        combine_fn: an associative pointwise function of two trees such as xs, the older one first.
        xs: a tensor, or a tree (tuple, list, dict) of at most four tensors of one shape.
        dim: the dimension to scan along.
        reverse: scan from the last item to the first.
        combine_mode: ``"pointwise"``, or ``"generic"`` for a function that happens to be pointwise.

    Returns:
        A tree as xs, of contiguous tensors.

    Raises:
        UnsupportedRequest: more than four tensors, other shapes, or a function that no kernel computes: one that moves
            items, reads other tensors or branches on values.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch
        >>> from scanops.compat import associative_scan
        >>> associative_scan(lambda a, b: torch.maximum(a, b), torch.tensor([1.0, 3.0, 2.0]), 0)
        tensor([1., 3., 3.])

    Gradient: by the kernels of the operators named above; of other functions as of ``scanops.operator``.

    When to use it: in eager code, for gradients and for lengths that change. On an H100, 8 x 4096 x 256 pairs take 72
    us (recurrence) and 74 us (products of complex numbers); torch's own, compiled, 220 us for both. For small tensors
    of fixed shape inside ``torch.compile`` the two take the same time: 5 us for 1 x 64 x 32.

    Source: Blelloch, "Prefix Sums and Their Applications" (1990).
    """
    who = "associative_scan"
    if not callable(combine_fn):
        raise _make_error(
            who, "a function of two trees", f"combine_fn={format_value(combine_fn)}", "pass combine_fn=torch.add"
        )
    leaves, tree = pytree.tree_flatten(xs)
    if not isinstance(combine_mode, str) or combine_mode not in ("pointwise", "generic"):
        raise _make_error(who, "'pointwise' or 'generic'", f"combine_mode={format_value(combine_mode)}", "leave it out")
    if not 1 <= len(leaves) <= MOST_TENSORS:
        raise _make_error(who, f"1 to {MOST_TENSORS} tensors", f"{len(leaves)} tensors", "scan in several calls")
    _check_flags(who, reverse=reverse)
    _check_tensors(who, **{f"xs[{n}]" if n else "xs": each for n, each in enumerate(leaves)})
    for each in leaves:
        _check_shape(who, "xs", each, tuple(leaves[0].shape))
    dim = checks.check_dim(who, leaves[0].shape, dim)
    _check_memory(who, "xs", leaves[0], tuple(leaves[0].shape), dim)
    if torch.compiler.is_dynamo_compiling():
        return pytree.tree_unflatten(_scan_followed(combine_fn, leaves, tree, dim, reverse), tree)
    operator = _operator_for(combine_fn, tree, leaves)
    if isinstance(operator, str):
        return pytree.tree_unflatten(_scan_named(operator, leaves, dim, reverse), tree)
    found = api.scan(tuple(leaves), operator, dim, reverse=reverse)
    return pytree.tree_unflatten(list(found) if isinstance(found, tuple) else [found], tree)


def _scan_named(name: str, leaves: list[Tensor], dim: int, reverse: bool) -> list[Any]:
    """Return the results of an operator of the table."""
    if name == "linear":
        a, b = leaves
        gates = relatives.cumprod(a, dim, reverse=reverse, dtype=a.dtype)
        return [gates, api.linear_scan(a, b, dim, reverse=reverse)]
    (x,) = leaves
    is_logical = name in ("logical_and", "logical_or")  # which give bool
    return [api.scan(x, name, dim, reverse=reverse, dtype=None if is_logical or x.dtype == torch.bool else x.dtype)]


Combine = Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
CombineTerm = tuple[Any, ...]  # ("older", place), ("newer", place), or the name of an operator and two terms

MOST_TENSORS = 4  # results of one kernel
ALWAYS_THERE = 2**30  # bytes, for which no device is asked
MOST_FUNCTIONS = 256  # whose operators are remembered
_OF_BOOLS = {"sum": "logical_or", "prod": "logical_and"}  # whose sums and products are bools
_OPERATORS: dict[Any, str | FieldOperator] = {}  # by all that a function can see, the tree and the dtypes
_OLDER, _NEWER = ("older", 0), ("newer", 0)
_LINEAR = (("prod", _NEWER, _OLDER), ("sum", ("newer", 1), ("prod", _NEWER, ("older", 1))))
_FUNCTIONS = {  # by name of an operation: the operator of the same result
    "add": "sum",
    "mul": "prod",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "max": "max",
    "min": "min",
    "logaddexp": "logcumsumexp",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
}
_NAMES = {**OPERATION_NAMES, torch.logaddexp: "logaddexp"}  # of functions; methods have names alone
_NAMED = ("linear", *_FUNCTIONS.values())


def _operator_for(combine_fn: Callable[[Any, Any], Any], tree: Any, leaves: list[Tensor]) -> str | FieldOperator:
    """Return the name of an operator of the table, or one that is made once for equal functions of equal trees."""
    dtypes = tuple(each.dtype for each in leaves)
    seen = key_of(combine_fn)
    key = None if seen is None else (seen, tree, dtypes)
    known = None if key is None else _OPERATORS.get(key)
    if known is not None:
        return known

    def combine(older: tuple[Any, ...], newer: tuple[Any, ...]) -> tuple[Any, ...]:
        found = combine_fn(pytree.tree_unflatten(list(older), tree), pytree.tree_unflatten(list(newer), tree))
        return tuple(tree.flatten_up_to(found))

    def check(older: tuple[Any, ...], newer: tuple[Any, ...]) -> tuple[Any, ...]:
        pair = (pytree.tree_unflatten(list(each), tree) for each in (older, newer))
        return _flatten(combine_fn(*pair), tree)

    name = _name_of(check, dtypes)
    operator = name or _make_operator(combine, _find_dtypes(check, dtypes))  # whose function sees constants alone
    if key is not None and key_of(combine_fn) == seen:  # nothing that it reads changed while it ran
        if len(_OPERATORS) >= MOST_FUNCTIONS:
            _OPERATORS.clear()
        _OPERATORS[key] = operator
    return operator


def _scan_followed(
    combine_fn: Callable[[Any, Any], Any], leaves: list[Tensor], tree: Any, dim: int, reverse: bool
) -> list[Any]:
    """Return the results while Dynamo traces: it runs the function, and so guards whatever that sees."""
    count = len(leaves)

    def combine(*items: Any) -> tuple[Any, ...]:
        older, newer = (pytree.tree_unflatten(list(each), tree) for each in (items[:count], items[count:]))
        return _flatten(combine_fn(older, newer), tree)

    text = _text_for(*follow(combine, 2 * count), tuple([each.dtype for each in leaves]))
    for name in _NAMED:  # Dynamo guards the type of the text, which it cannot look up
        if text == name:
            return _scan_named(name, leaves, dim, reverse)
    any_length = leaves[0].ndim > 0 and is_symbol(leaves[0].shape[dim])
    x, *further = leaves
    absent, options = (None,) * 5, {"reverse": reverse, "any_length": any_length}
    return list(schema.FUSED(x, *absent, further, text, dim, EXPRESSIONS.name, **options))


@raise_while_tracing
def _text_for(name: str, values: tuple[Any, ...], dtypes: tuple[torch.dtype, ...]) -> str:
    """Return the name of an operator of the table, or the text of expressions, for a function that was followed."""

    def combine(apply: Callable[..., Any], older: tuple[Any, ...], newer: tuple[Any, ...]) -> tuple[Any, ...]:
        found: tuple[Any, ...] = repeat_followed(name, values, apply)(*older, *newer)
        return found

    found = _name_of(functools.partial(combine, _apply_to_proxies), dtypes)
    if found is not None:
        return found
    apart = functools.partial(combine, apply_operation)
    operator, kinds = _make_operator(apart, _find_dtypes(apart, dtypes)), tuple((each, False) for each in dtypes)
    return trace_fusion(None, None, operator, kinds, False, None).text


def _apply_to_proxies(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    name = getattr(function, "__name__", "")
    if function is getattr(Tensor, name, None):  # a method
        return getattr(arguments[0], name)(*arguments[1:], **keywords)
    return function(*arguments, **keywords)


def _flatten(found: Any, tree: Any) -> tuple[Any, ...]:
    """Return the leaves of what a function returned in the order of those of ``tree``, whose structure it must have."""
    try:
        return tuple(tree.flatten_up_to(found))
    except ValueError:
        raise _make_error(
            "associative_scan",
            f"a combine_fn that returns a tree such as xs, {tree}",
            f"it returned {pytree.tree_structure(found)}",
            "return a value for each tensor of xs, in the same tuples, lists and dicts",
        ) from None


def _name_of(combine: Combine, dtypes: tuple[torch.dtype, ...]) -> str | None:
    """Return the name of the operator that a function is, operands in any order; None for any other function."""
    count, graph = len(dtypes), torch.fx.Graph()
    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    items = [torch.fx.Proxy(graph.placeholder(f"item{n}"), tracer) for n in range(2 * count)]
    try:
        results = combine(tuple(items[:count]), tuple(items[count:]))
    except UnsupportedRequest:
        raise
    except Exception:  # what cannot be traced so may still be an operator of fields
        return None
    terms = {item.node: ("older", n) if n < count else ("newer", n - count) for n, item in enumerate(items)}
    found = tuple(_term(each.node, terms) if isinstance(each, torch.fx.Proxy) else None for each in results)
    if found == _LINEAR:
        return "linear" if all(each.is_floating_point or each.is_complex for each in dtypes) else None
    name, *operands = found[0] if found[0] is not None else (None,)
    if count > 1 or operands != [_NEWER, _OLDER]:
        return None
    return _OF_BOOLS.get(name, name) if dtypes[0] == torch.bool else name


def _term(node: torch.fx.Node, terms: dict[torch.fx.Node, CombineTerm]) -> CombineTerm | None:
    """Return a tree of operators' names with sorted operands; None where a function is not that of an operator."""
    if node in terms:
        return terms[node]
    name = _FUNCTIONS.get(node.target if isinstance(node.target, str) else _NAMES.get(node.target, ""))
    operands = [_term(each, terms) if isinstance(each, torch.fx.Node) else None for each in node.args]
    if name is None or node.kwargs or len(operands) != 2:
        return None
    known = [each for each in operands if each is not None]
    return (name, *sorted(known, key=repr)) if len(known) == 2 else None


def _make_operator(combine: Combine, dtypes: tuple[torch.dtype, ...]) -> FieldOperator:
    """Return an operator with an identity: a state tells whether it is of any item, else the other one counts."""
    fields = {f"field{n}": each for n, each in enumerate(dtypes)}

    def combine_fields(older: tuple[Any, ...], newer: tuple[Any, ...]) -> tuple[Any, ...]:
        (*before, met), (*after, meets) = older, newer
        both = combine(tuple(before), tuple(after))
        states = zip(both, before, after, strict=True)
        chosen = (torch.where(met, torch.where(meets, state, x), y) for state, x, y in states)
        return (*chosen, torch.logical_or(met, meets))

    return operator_of_fields(
        fields={**fields, "met": torch.bool},
        combine=combine_fields,
        lift=lambda *items: (*items, torch.logical_or(items[0] == 0, items[0] != 0)),  # True, also of NaN
        project=lambda state: tuple(state)[:-1],
        name="associative_scan",
    )


def _find_dtypes(combine: Combine, dtypes: tuple[torch.dtype, ...]) -> tuple[torch.dtype, ...]:
    """Return the dtypes that a function gives for items of these, and again for those that it gives."""
    count = len(dtypes)
    for _ in range(MOST_TENSORS):
        found = trace_dtypes(lambda *items: combine(items[:count], items[count:]), (*dtypes, *dtypes))
        if found == dtypes:
            return dtypes
        dtypes = found
    raise _make_error(
        "associative_scan",
        "a combine_fn that returns the dtypes that it is given",
        f"it returned {', '.join(map(str, found))}",
        "convert what it returns",
    )


# ---- packages that are not installed

_MAMBA = "mamba_ssm"
_VERSION = "1.2.0+scanops"  # of the interface: the functions of Mamba-2 came with 2.0


def provide(package: str) -> bool:
    """Let other packages import functions of ``package`` from scanops, where that package is not installed.

    For ``"mamba_ssm"``: ``selective_scan_fn`` of ``mamba_ssm.ops.selective_scan_interface`` and
    ``selective_state_update`` of ``mamba_ssm.ops.triton.selective_state_update``. That is where transformers looks when
    it imports the module of a Mamba model: call this before. ``scanops doctor`` says what can be provided.

    Args:
        package: ``"mamba_ssm"``.

    Returns:
        Whether the functions are those of scanops: False where the package is installed, which nothing hides.

    Raises:
        UnsupportedRequest: another package.

    Example:
        >>> import scanops.compat
        >>> scanops.compat.provide("mamba_ssm")
        True
        >>> from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
        >>> selective_scan_fn is scanops.compat.selective_scan_fn
        True
    """
    if package != _MAMBA:
        hint = "import the function from scanops.compat, or change the import of the other package"
        raise UnsupportedRequest(
            "provide: scanops has no functions of that package",
            allowed=repr(_MAMBA),
            value=f"package={format_value(package)}",
            hint=hint,
        )
    if is_provided(package):
        return True
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        return False
    functions: dict[str, dict[str, Any]] = {
        _MAMBA: {"__version__": _VERSION, "PROVIDER": "scanops"},
        f"{_MAMBA}.ops": {},
        # Of releases of transformers that import it by name, and go without it where it is None.
        f"{_MAMBA}.ops.selective_scan_interface": {"selective_scan_fn": selective_scan_fn, "mamba_inner_fn": None},
        f"{_MAMBA}.ops.triton": {},
        f"{_MAMBA}.ops.triton.selective_state_update": {"selective_state_update": selective_state_update},
    }
    for name, members in functions.items():
        module = types.ModuleType(name, f"Functions of {_MAMBA}, computed by scanops.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.__dict__.update(members)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    return True


def is_provided(package: str) -> bool:
    """Return whether the modules of a package are those that ``provide`` has made."""
    return getattr(sys.modules.get(package), "PROVIDER", None) == "scanops"


# ---- checks of the arguments of all functions


def _check_tensors(who: str, **tensors: Any) -> None:
    """Raise unless these are tensors that scans read, on the device of the first."""
    first = next(iter(tensors.values()))
    for name, each in tensors.items():
        checks.check_tensor(who, name, each)
        checks.check_readable(who, name, each)
        checks.check_device(who, name, each, first)


def _check_real(who: str, **tensors: Tensor) -> None:
    for name, each in tensors.items():
        if each.is_complex():
            raise _make_error(who, f"a real tensor as {name}", f"{name}.dtype={each.dtype}", f"pass {name}.real")


def _present(**tensors: Any) -> dict[str, Any]:
    """Return the arguments that were given."""
    return {name: each for name, each in tensors.items() if each is not None}


def _check_flags(who: str, **flags: Any) -> None:
    for name, each in flags.items():
        if not isinstance(each, bool):
            raise _make_error(who, f"a bool as {name}", f"{name}={format_value(each)}", f"pass {name}=True")


def _check_factor(who: str, name: str, value: Any, x: Tensor, shape: tuple[int, ...]) -> Any:
    """Return a real number as a float, or a real tensor that broadcasts to ``shape``; raise for anything else."""
    if isinstance(value, Tensor):
        _check_tensors(who, x=x, **{name: value})
        _check_real(who, **{name: value})
        return checks.check_operand(who, name, value, x, torch.Size(shape), str(shape))
    elif isinstance(value, int | float):
        if torch.compiler.is_compiling():  # which may hold a symbol
            return value
        if abs(value) <= sys.float_info.max or value != value or abs(value) == math.inf:
            return float(value)
    elif isinstance(value, numbers.Real):  # of numpy
        return float(value)
    allowed = f"a real number of a float's size as {name}, or a real tensor that broadcasts to {shape}"
    raise _make_error(who, allowed, f"{name}={format_value(value)}", f"pass {name}=0.5, for example")


def _check_memory(who: str, name: str, x: Tensor, shape: tuple[int, ...], dim: int = -1) -> None:
    """Raise for lines that no scan takes, and for results that no device holds, as those of expanded tensors."""
    if torch.compiler.is_compiling() or not shape:
        return
    if shape[dim] > MAX_LENGTH:
        allowed = f"at most {MAX_LENGTH} items along the scanned dimension"
        raise _make_error(who, allowed, f"{name}.shape={tuple(x.shape)}", "scan it in pieces")
    size = math.prod(shape) * torch.float32.itemsize
    if size > ALWAYS_THERE and not x.is_meta and size > (memory := _memory_of(x.device)):
        allowed = f"results of at most {memory} bytes, the memory of {x.device}"
        raise _make_error(who, allowed, f"{name}.shape={tuple(x.shape)}, for {size} bytes", "scan it in pieces")


def _memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _sizes(who: str, name: str, tensor: Tensor, allowed: str, count: int) -> tuple[int, ...]:
    if tensor.ndim != count:
        raise _make_error(who, f"{name} of shape {allowed}", f"{name}.shape={tuple(tensor.shape)}", f"reshape {name}")
    return tuple(tensor.shape)


def _check_dim(who: str, name: str, dim: Any, tensor: Tensor) -> int:
    """Return a dimension of a tensor, counted from 0."""
    rank, dim = tensor.ndim, checks.whole_dim(dim)
    if type(dim) is not int or not -rank <= dim < rank:
        raise DimensionOutOfRange(
            f"{who}: {name} must be a dimension of a tensor of shape {tuple(tensor.shape)}",
            allowed=f"an int from {-rank} to {rank - 1}",
            value=f"{name}={format_value(dim)}",
            hint=f"pass {name}=0 for a single trajectory" if rank == 1 else f"pass the dimension of time as {name}",
        )
    return dim % rank


def _check_shape(who: str, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is not None and tuple(tensor.shape) != shape:
        value = f"{name}.shape={tuple(tensor.shape)}"
        raise _make_error(who, f"{name} of shape {shape}", value, f"pass {name} with the shape of the other tensors")


def _make_error(who: str, allowed: str, value: str, hint: str) -> UnsupportedRequest:
    return UnsupportedRequest(f"{who}: an argument is not as described", allowed=allowed, value=value, hint=hint)
