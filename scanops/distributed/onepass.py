"""Method ``onepass``: which calls it serves, and when it is faster than two passes.

Each rank's kernel waits for the state at the end of a line of the rank before, while it scans other lines: every item
is read once and written once, and no collective runs. A rank falls behind the one before it by the time of a *front*,
the lines that a GPU scans at the same time (method_costs.py).

All ranks must choose alike, and know nothing of one another's lengths: the choice depends on what is equal on all.

Source: tile status as in Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016), here
between GPUs.
"""

from __future__ import annotations

import math
import socket
from typing import Any, Literal

import torch
from torch import Tensor

from scanops.codegen.derivatives import Gradient
from scanops.codegen.dtypes import dtype_named
from scanops.distributed.call_log import CallLog
from scanops.distributed.exchange import Message, difference
from scanops.distributed.groups import Group, is_captured
from scanops.distributed.links import Link
from scanops.distributed.method_costs import compare_methods, count_fronts
from scanops.distributed.shards import Shard
from scanops.errors import PeerMismatch, UnsupportedRequest, format_value
from scanops.ops.dispatch import serve
from scanops.requests.call import Call
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import Inputs, Tensors
from scanops.requests.torch_state import has_kernels
from scanops.runtime import call_cache, native
from scanops.runtime.launcher import Launcher

__all__ = [
    "SharedFinal",
    "add_neutral_items",
    "choose_method",
    "launch_linked",
    "link_of",
    "scan_linked",
]

OPERATORS = ("sum", "prod", "max", "min", "linear", "logcumsumexp")


def choose_method(
    method: str, shard: Shard, ranks: int, spans: int, *, recorded: bool, of_initial: bool = False
) -> str:
    """Return ``"onepass"`` or ``"twopass"``. Raises UnsupportedRequest for a method that does not serve the call.

    ``recorded``: whether autograd records the call; ``of_initial``: whether for the gradient of the initial value, too.
    """
    if method == "twopass" or ranks == 1:
        return "twopass"
    problem = _problem_of(shard, spans, recorded=recorded, of_initial=of_initial)
    if method == "onepass":
        if problem is None:
            return "onepass"
        raise UnsupportedRequest(
            f"{shard.call.name}: method 'onepass' does not serve this call: {problem}",
            allowed=f"one shard on each rank, of the operators {', '.join(OPERATORS)}, without offsets",
            value=f"op={shard.call.op!r}, {problem}",
            hint="leave method out: 'twopass' serves every call",
        )
    fronts = count_fronts(shard.tensors.x.shape, shard.call.dim)
    costs = compare_methods(fronts, ranks, is_recurrence=shard.row.gated)
    is_faster = shard.tensors.x.is_cuda and costs.onepass <= costs.twopass
    return "onepass" if problem is None and is_faster else "twopass"


def _problem_of(shard: Shard, spans: int, *, recorded: bool, of_initial: bool) -> str | None:
    """Return what keeps a call from one pass, in words; None if nothing does."""
    call, tensors, gradient = shard.call, shard.tensors, shard.row.gradient or Gradient()
    for holds, words in (
        (call.op not in OPERATORS, f"op={call.op!r}"),
        (tensors.offsets is not None, "offsets given"),
        (spans > 1, "several spans on a rank"),
        (call.compensated, "accumulate='compensated'"),
        (shard.carry.is_complex, f"carries of {shard.carry}"),
        (recorded and shard.final and not gradient.begins, f"gradients of return_final of op={call.op!r}"),
        (recorded and of_initial and not gradient.ends, f"gradients of initial of op={call.op!r}"),
        (not has_kernels(tensors.x), f"x on {tensors.x.device}"),
    ):
        if holds:
            return words
    return None


def link_of(group: Group, message: Message, x: Tensor) -> Link | None:
    """Return the link of this rank to others, None where ranks have none: on several hosts, say.

    Ranks compare a call at the first of its kind, and at every call with ``check="always"``; other calls are noted in
    the call log. Raises PeerMismatch.
    """
    ledger = group.ledger
    link: Link | Literal[False] | None = ledger.links.get(x.device)
    is_new = message.digest not in ledger.compared
    is_compared = message.check == "always" or (is_new and message.check == "first")
    if link is None or is_compared:
        hosts = _compare(group, message, x, is_new=is_new)
        if link is None:
            link = ledger.links[x.device] = len(set(hosts)) == 1 and _make_link(group, x.device)
    if not link:
        return None
    if not is_compared:
        link.log.note_launch(message)
    return link


def _compare(group: Group, message: Message, x: Tensor, *, is_new: bool) -> tuple[str, ...]:
    """Compare a call on all ranks; return the host of each. Raises PeerMismatch."""
    if is_captured(x):
        raise UnsupportedRequest(
            f"{message.who}: ranks cannot compare a call that a CUDA graph captures",
            allowed="a call that ranks have made before",
            value=f"check={message.check!r}, made before: {not is_new}",
            hint="make the same call once before the capture, on every rank",
        )
    if group.ledger.log is not None:
        group.ledger.log.note_comparison(message)
    said = group.gather_words((message.digest, message.parts, socket.gethostname()))
    if len({digest for digest, _, _ in said}) > 1:
        differ, values = difference([parts for _, parts, _ in said])
        value = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(values))
        raise PeerMismatch(
            f"{message.who}: ranks differ in {differ}",
            allowed="equal calls on all ranks; only the length of a shard may differ",
            value=format_value(value).strip("'\""),
            hint="make the same call, in the same order of calls, on every rank of the group",
        )
    group.ledger.compared.add(message.digest)
    return tuple(host for _, _, host in said)


def _make_link(group: Group, device: torch.device) -> Link | Literal[False]:
    """Return a link if every rank of the group has made one."""
    link: Link | Literal[False] = False
    try:
        log = group.ledger.log or CallLog(group)
        link, problem = Link(group, device, log), ""
        link.reserve(1)
    except (UnsupportedRequest, OSError) as refused:
        problem = str(refused)
    if any(group.gather_words(problem)):
        return False
    group.ledger.log = log
    return link


class SharedFinal:
    """The carry-out of a line on all ranks: the last rank in scan order has it, and hands it on against that order.

    The others add zeros to its bits, in a scan of linked lines of one item. The gradients that ranks give to it add up
    in scan order, on the last rank. So the ranks exchange it as they do states, and no collective runs.
    """

    def __init__(self, link: Link, call: Call, carry: torch.dtype, lines: torch.Size) -> None:
        self.link, self.carry, self.lines = link, carry, lines
        bits = torch.int64 if carry.itemsize == 8 else torch.int32
        self._spread = Call("sum", 0, not call.reverse, dtype=bits, link=link)
        self._add_up = Call("sum", 0, call.reverse, dtype=carry, link=link)
        self._zeros: Tensor | None = None
        self._launches: dict[Call, tuple[int, Launcher]] = {}  # and the generation of the call cache that held each

    def share(self, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the results of a rank with the carry-out of the line, which the last rank's have at their end."""
        y, *final = found
        return y, self._spread_bits(final[0] if final else None, y)

    def add_up(self, gradient: Tensor | None, like: Tensor) -> Tensor:
        """Return, on the last rank, the sum of the gradients that ranks give to the carry-out; None counts as zeros."""
        if gradient is None:
            gradient = torch.zeros(self.lines, dtype=self.carry, device=like.device)
        gradient = gradient.to(self.carry).resolve_neg().contiguous()
        if gradient.data_ptr() % ALIGNMENT:
            gradient = gradient.clone()
        return self._scan(self._add_up, gradient.view(1, -1)).view(self.lines)

    def _spread_bits(self, final: Tensor | None, like: Tensor) -> Tensor:
        bits = self._spread.result
        narrow = {1: torch.int8, 2: torch.int16}.get(self.carry.itemsize, bits)
        if final is not None:
            own = final.reshape(1, -1).view(narrow).to(bits)
        elif self._zeros is not None:
            own = self._zeros
        else:
            own = torch.zeros((1, self.lines.numel()), dtype=bits, device=like.device)
            if not is_captured(own):  # a CUDA graph fills its own at each replay
                self._zeros = own
        return self._scan(self._spread, own).to(narrow).view(self.carry).view(self.lines)

    def _scan(self, call: Call, x: Tensor) -> Tensor:
        generation, launcher = self._launches.get(call, (0, None))
        if launcher is not None and generation == native.generation():
            return launch_linked(launcher, (x,))[0]
        (y,) = _serve(call, Inputs(x), None)
        known = call_cache.recall(call, Inputs(x))[1]
        if known is not None and known.launcher.own:
            self._launches[call] = native.generation(), known.launcher
        return y


def launch_linked(launcher: Launcher, tensors: Tensors) -> tuple[Tensor, ...]:
    """Return the results of a known launch; where it fails, kernels of other ranks wait for it no longer."""
    try:
        return launcher.outputs(tensors)
    except Exception:
        launcher.link.abandon()
        raise


def scan_linked(call: Call, given: Inputs, record: Any = None) -> tuple[Tensor, ...]:
    """Return this rank's results of a linked call; ``record``: what makes its node of autograd, as for ``serve``.

    The first rank in scan order may give ``initial``, and the last one ask for the carry-out, ``call.final``; the ranks
    between have neither. A rank without items hands on what it receives, by a neutral item.
    """
    if given.x.shape[call.dim]:
        return _serve(call, given, record)
    y, *final = _serve(call, add_neutral_items(call, given), record)
    return (y.narrow(call.dim, 0, 0), *final)


def add_neutral_items(call: Call, given: Inputs) -> Inputs:
    """Return the tensors of a rank without items with an item for each line that changes no state."""
    x, mask = given.x, given.mask
    if call.op in ("max", "min"):  # items that are masked out are the only ones that never give the value
        x, mask = (x, mask) if mask is None or mask.dtype == torch.bool else (x * mask, None)
        mask = torch.zeros((), dtype=torch.bool, device=x.device) if mask is None else mask
    shape, x = x.shape, x.to(call.result)  # which holds the neutral item
    x = torch.cat([x, _neutral_items(call, x)], call.dim)

    def lengthen(each: Tensor | None, value: int) -> Tensor | None:
        if each is None:
            return None
        return torch.cat([each.expand(shape), torch.full_like(x, value, dtype=each.dtype)], call.dim)

    mask = lengthen(mask, 0 if mask is not None and mask.dtype == torch.bool else 1)
    return given._replace(x=x, mask=mask, gate=lengthen(given.gate, 1), starts=lengthen(given.starts, 0))


def _serve(call: Call, given: Inputs, record: Any) -> tuple[Tensor, ...]:
    plain: Any = [each.resolve_conj().resolve_neg() if isinstance(each, Tensor) else each for each in given]
    read = Inputs(*plain)
    try:
        return serve(call, read, eager=True, record=record)
    except Exception:  # whatever it is: kernels of other ranks wait for this one's
        call.link.abandon()
        raise


def _neutral_items(call: Call, x: Tensor) -> Tensor:
    shape = [1 if d == call.dim else size for d, size in enumerate(x.shape)]
    row = dtype_named(x.dtype)
    value = {"prod": 1, "max": row.lowest, "min": row.highest, "logcumsumexp": -math.inf}.get(call.op, 0)
    return torch.full(shape, value, dtype=x.dtype, device=x.device)
