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
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from scanops.distributed.call_log import CallLog
from scanops.distributed.exchange import Message, difference
from scanops.distributed.groups import Group, is_captured
from scanops.distributed.links import Link
from scanops.distributed.method_costs import compare_methods, count_fronts
from scanops.distributed.shards import Shard
from scanops.errors import PeerMismatch, UnsupportedRequest, format_value
from scanops.ops.dispatch import serve
from scanops.ops.schema import TENSORS
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from scanops.requests.torch_state import has_kernels
from scanops.runtime import call_cache, native

__all__ = ["LinkedScan", "choose_method", "link_of", "make_repeat", "scan_linked"]

OPERATORS = ("sum", "prod", "max", "min", "linear", "logcumsumexp")
RECORDED = ("sum", "prod", "linear")  # those whose backward passes are scans of linked lines


def choose_method(method: str, shard: Shard, ranks: int, spans: int, *, recorded: bool) -> str:
    """Return ``"onepass"`` or ``"twopass"``. Raises UnsupportedRequest for a method that does not serve the call."""
    if method == "twopass" or ranks == 1:
        return "twopass"
    problem = _problem_of(shard, spans, recorded=recorded)
    if method == "onepass":
        if problem is None:
            return "onepass"
        raise UnsupportedRequest(
            f"{shard.call.name}: method 'onepass' does not serve this call: {problem}",
            allowed=f"one shard on each rank, of the operators {', '.join(OPERATORS)}; with gradients of "
            f"{', '.join(RECORDED)}; without offsets and return_final",
            value=f"op={shard.call.op!r}, {problem}",
            hint="leave method out: 'twopass' serves every call",
        )
    fronts = count_fronts(shard.tensors.x.shape, shard.call.dim)
    costs = compare_methods(fronts, ranks, is_recurrence=shard.row.gated)
    is_faster = shard.tensors.x.is_cuda and costs.onepass <= costs.twopass
    return "onepass" if problem is None and is_faster else "twopass"


def _problem_of(shard: Shard, spans: int, *, recorded: bool) -> str | None:
    """Return what keeps a call from one pass, in words; None if nothing does."""
    call, tensors = shard.call, shard.tensors
    for holds, words in (
        (call.op not in OPERATORS, f"op={call.op!r}"),
        (shard.final, "return_final=True"),
        (tensors.offsets is not None, "offsets given"),
        (spans > 1, "several spans on a rank"),
        (call.compensated, "accumulate='compensated'"),
        (shard.carry.is_complex, f"carries of {shard.carry}"),
        (recorded and call.op not in RECORDED, f"gradients of op={call.op!r}"),
        (recorded and call.op == "linear" and tensors.mask is not None, "gradients of op='linear' beside a mask"),
        (recorded and call.op != "sum" and tensors.starts is not None, f"gradients of op={call.op!r} beside segments"),
        (not has_kernels(tensors.x), f"x on {tensors.x.device}"),
    ):
        if holds:
            return words
    return None


def link_of(group: Group, message: Message, x: Tensor) -> Link | None:
    """Return this rank's link, None where ranks do not reach one another's memory.

    Ranks compare a call at the first of its kind, and at every call with ``check="always"``; other calls are noted in
    the call log. Raises PeerMismatch.
    """
    ledger, key = group.ledger, (group.members, x.device)
    is_new, link = message.digest not in ledger.compared, ledger.links.get(key)
    if message.check != "always" and not (is_new and message.check == "first") and link is not None:
        if link:
            link.log.note_launch(message)
        return link or None
    if is_captured(x):
        raise UnsupportedRequest(
            f"{message.who}: ranks cannot compare a call that a CUDA graph captures",
            allowed="a call that ranks have made before",
            value=f"check={message.check!r}, made before: {not is_new}",
            hint="make the same call once before the capture, on every rank",
        )
    if ledger.log is not None:
        ledger.log.note_comparison(message)
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
    ledger.compared.add(message.digest)
    if link is None:
        link = _make_link(group, x.device) if len({host for _, _, host in said}) == 1 else False
        ledger.links[key] = link
    return link or None


def _make_link(group: Group, device: torch.device) -> Link | Literal[False]:
    """Return a link if every rank of the group has made one."""
    link: Link | Literal[False] = False
    try:
        log = group.ledger.log or CallLog(group)
        link, problem = Link(group.process_group, group.members, group.position, device, log), ""
        link.reserve(1)
    except (UnsupportedRequest, OSError) as refused:
        problem = str(refused)
    if any(group.gather_words(problem)):
        return False
    group.ledger.log = log
    return link


class LinkedScan(NamedTuple):
    """The launch that served a call in one pass: equal calls are it again."""

    message: Message
    known: call_cache.Known
    generation: int  # of the call cache that held it
    starts_line: bool  # whether this rank's kernel reads the carry-in
    scan: Any  # the ShardedScan whose gradients are recorded; None where they are not

    def run(self, given: Inputs) -> tuple[Tensor, ...]:
        """Return the results for tensors like those of that call."""
        self.known.launcher.link.log.note_launch(self.message)
        if self.scan is None:
            return self.known.launcher.outputs(given.flat)
        own = given if self.starts_line else given._replace(initial=None)
        found: tuple[Tensor, ...] = self.scan.record(given.initial, self.known, own[:TENSORS])
        return found


def make_repeat(message: Message, call: Call, given: Inputs, scan: Any) -> LinkedScan | None:
    """Return the launch of a call that the call cache holds; None where equal calls are checked every time."""
    known = call_cache.recall(call, given)[1]
    if known is None or not known.launcher.own:
        return None
    return LinkedScan(message, known, native.generation(), given.initial is not None, scan)


def scan_linked(call: Call, given: Inputs, record: Any = None) -> tuple[Tensor, ...]:
    """Return this rank's results of a linked call; ``record``: what makes its node of autograd, as for ``serve``.

    The first rank in scan order may give ``initial``, and the last one ask for the carry-out, ``call.final``; the ranks
    between have neither. A rank without items hands on what it receives, by a neutral item.
    """
    if given.x.shape[call.dim]:
        return _serve(call, given, record)
    shape, x = given.x.shape, torch.cat([given.x, _neutral_items(call, given.x)], call.dim)

    def lengthen(each: Tensor | None, value: int) -> Tensor | None:
        if each is None:
            return None
        return torch.cat([each.expand(shape), torch.full_like(x, value, dtype=each.dtype)], call.dim)

    gate, mask, starts = lengthen(given.gate, 1), lengthen(given.mask, 1), lengthen(given.starts, 0)
    y, *final = _serve(call, given._replace(x=x, gate=gate, mask=mask, starts=starts), record)
    return (y.narrow(call.dim, 0, 0), *final)


def _serve(call: Call, given: Inputs, record: Any) -> tuple[Tensor, ...]:
    plain: Any = [each.resolve_conj().resolve_neg() if isinstance(each, Tensor) else each for each in given]
    read = Inputs(*plain)
    try:
        return serve(call, read, eager=True, record=record)
    except Exception:  # whatever it is: kernels of other ranks wait for this one's
        call.link.abandon()
        raise


def _neutral_items(call: Call, x: Tensor) -> Tensor:
    """Return an item for each line that changes no state."""
    shape = [1 if d == call.dim else size for d, size in enumerate(x.shape)]
    info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    least, most = (-math.inf, math.inf) if x.is_floating_point() else (info.min, info.max)
    value = {"prod": 1, "max": least, "min": most, "logcumsumexp": -math.inf}.get(call.op, 0)
    return torch.full(shape, value, dtype=x.dtype, device=x.device)
