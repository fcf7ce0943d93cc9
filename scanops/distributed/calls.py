"""Sharded calls: checks, and the exchanges of one rank. Every rank of a group makes the same calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops.distributed import node, shards
from scanops.distributed.groups import CHECKS, Agreed, Group, is_captured
from scanops.distributed.shards import Carry, Shard, recorded_with
from scanops.distributed.spans import Layout, cut, described, in_order_of, joined, layout_of, span_table
from scanops.errors import UnsupportedRequest, shown
from scanops.requests.call import Call, is_transformed
from scanops.requests.request import Inputs
from scanops.requests.segments import check_offsets, flags_along

__all__ = ["How", "answered", "scan_shards"]

Outputs = tuple[Tensor, ...]
Initial = Tensor | complex | None
METHODS = ("auto", "twopass")


class How(NamedTuple):
    """How ranks compute a call together: keywords of the functions of ``scanops.distributed``."""

    method: str = "auto"
    check: str = "first"
    spans: Any = None

    @classmethod
    def of(cls, options: dict[str, Any]) -> How:
        """Take the keywords out of the options of a call."""
        return cls(**{name: options.pop(name) for name in cls._fields if name in options})


def scan_shards(who: str, request: Callable[[], tuple[Call, Inputs]], group: Group, how: How) -> Outputs:
    """Return this rank's results, and the carry-out of the whole line if the call asks for it.

    ``request`` makes the call and its tensors, or raises; ``who`` is the public function. Raises UnsupportedRequest,
    PeerMismatch or PeerLost.
    """
    shard, problem, parts = None, None, dict.fromkeys(_PARTS, "")
    captured = not is_compiling() and is_captured()
    try:
        call, given = request()
        shard = _checked(call, given, how)
        if captured and (group.size > 1 or how.spans is not None):
            group.check_captured(who)
        table = span_table(who, how.spans, group.size, shard.length)
        layout = layout_of(who, table, group.size, group.position, shard.length)
        parts = parts if is_compiling() else {**_parts(given, shard), "spans": described(table)}
    except Exception as refused:  # whatever it is: the other ranks have to hear of it
        shard, problem = None, refused
    size = 0 if shard is None else shard.length
    agreed = Agreed([] if is_compiling() else [size], size)
    if not is_compiling() and group.size > 1:
        agreed = group.agree({"function": who, **parts}, size, problem, how.check if how.check in CHECKS else "first")
    if shard is None:
        assert problem is not None
        raise problem
    if group.size == 1 and layout.width == 1:
        return answered(call, given)
    return Work(shard, group, layout).outputs(given.initial, agreed)


def answered(call: Call, given: Inputs) -> Outputs:
    """Return the outputs of the scan of one GPU."""
    found = shards.scanned(call, given.x, **{name: getattr(given, name) for name in shards.OTHERS})
    return found if isinstance(found, tuple) else (found,)


def _checked(call: Call, given: Inputs, how: How) -> Shard:
    for name, words in (("check", CHECKS), ("method", METHODS)):
        if getattr(how, name) not in words:
            raise UnsupportedRequest(
                f"{call.name}: {name} must be a word: {name}={shown(getattr(how, name))}",
                allowed=", ".join(map(repr, words)),
                value=f"{name}={shown(getattr(how, name))}",
                hint=f"leave {name} out",
            )
    if not is_compiling() and is_transformed():
        raise UnsupportedRequest(
            f"{call.name}: a sharded scan does not run under torch.func transforms or forward mode",
            allowed="eager code, backward passes and torch.compile",
            value="an active transform",
            hint="transform a function that holds the whole dimension",
        )
    return shards.shard_of(call, given._replace(offsets=None), given.offsets)


_PARTS = (
    "operator", "dimension", "lines", "dtypes", "options", "operands", "initial", "offsets", "gradients", "spans",
)  # fmt: skip


def _parts(given: Inputs, shard: Shard) -> dict[str, str]:
    """Describe a call: what has to be equal on all ranks, in words for a message."""
    row, call, tensors, initial, offsets = shard.row, shard.call, shard.tensors, given.initial, given.offsets
    said = (
        f"{row.name} {row.lift} {row.combine} {row.identity}",
        f"dim={call.dim} of {tensors.x.ndim}",
        f"lines of shape {tuple(shard.lines)}",
        f"{tensors.x.dtype} to {shard.result}, carried in {shard.carry}",
        f"reverse={call.reverse}, exclusive={call.exclusive}, return_final={shard.final}, "
        f"compensated={call.compensated}",
        ", ".join(name for name in ("mask", "gate", "starts") if getattr(tensors, name) is not None),
        f"{tuple(initial.shape)} {initial.dtype}" if isinstance(initial, Tensor) else f"{initial}",
        "" if offsets is None else shown(offsets.tolist() if offsets.is_cpu else tuple(offsets.shape)),
        f"gradients={_with_tensor(given, initial).differentiates}",
    )
    return dict(zip(_PARTS, said, strict=False))


def _with_tensor(tensors: Inputs, initial: Initial) -> Inputs:
    """The tensors with the initial value among them if it is one and not a number."""
    return tensors._replace(initial=initial if isinstance(initial, Tensor) else None)


class Work:
    """One rank's part of a call, which is one span of the line or several, and the exchanges."""

    def __init__(self, shard: Shard, group: Group, layout: Layout) -> None:
        self.shard, self.group, self.layout = shard, group, layout.towards(shard.call.reverse)

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first span in scan order, which the initial value enters."""
        return 0 in self.layout.positions

    def outputs(self, initial: Initial, agreed: Agreed) -> Outputs:
        """Return results and carry-out, with a node of autograd where gradients are recorded."""
        shard, tensors = self.shard, self.shard.tensors
        self.place(agreed.lengths)
        tensors = self.shard.tensors
        read = _with_tensor(tensors, initial)
        if shard.lines.numel() == 0:  # there is nothing to exchange, on any rank
            empty = tensors.x.new_empty(shard.lines, dtype=shard.carry)
            return self.with_final(self.finished([Carry(None, empty)] * self.layout.width), empty)
        recorded = torch.is_grad_enabled() if is_compiling() else read.differentiates
        recorded = recorded and (shard.result.is_floating_point or shard.result.is_complex)
        if not recorded:
            carries = self.carried(self.totals(), initial)
            return self.with_final(self.finished(carries), carries[0].final)
        if is_compiling():
            return self.composed(tensors, initial)
        number = None if isinstance(initial, Tensor) else initial
        found: Outputs = node.TwoPass.apply(self, number, *read.differentiable)  # type: ignore[no-untyped-call]
        return found

    def parts(self, shard: Shard) -> list[Shard]:
        """Return the spans of this rank's shard, each a shard of its own."""
        pieces = cut(shard.tensors, shard.call.dim, self.layout.lengths)
        return [replace(shard, tensors=each) for each in pieces]

    def totals(self) -> tuple[Tensor, ...]:
        """Return the states of this rank's spans, stacked."""
        parts = zip(self.parts(self.shard), self.layout.starts, strict=True)
        return _stacked([shards.totals(part, start) for part, start in parts])

    def carried(self, total: tuple[Tensor, ...], initial: Initial) -> list[Carry]:
        """Return the carry into each span of this rank; the states of all ranks are exchanged."""
        return shards.fold(self.shard, self.in_order(self.group.gathered(total)), initial, self.layout.positions)

    def composed(self, tensors: Inputs, initial: Initial) -> Outputs:
        """Return the outputs by differentiable scans and exchanges, which have derivatives of every order."""
        shard = replace(self.shard, tensors=tensors)
        valued, ranks = shard.valued, self.group.size
        parts = self.parts(valued)
        total = _stacked([shards.totals(part, 0, recorded=True) for part in parts])
        read = (*tensors.differentiable, initial)
        leaf = next((each for each in read if isinstance(each, Tensor) and each.requires_grad), tensors.x)
        # Those of an empty shard may be constants, but ranks exchange the same gradients.
        total = tuple(each if each.dtype == torch.bool else recorded_with(leaf, each) for each in total)
        states = self.in_order(self.group.traded([each.expand(ranks, *each.shape) for each in total]))
        carries = shards.fold(valued, states, initial, self.layout.positions, recorded=True)
        found = joined([shards.finish(*each, 0) for each in zip(parts, carries, strict=True)], shard.call.dim)
        if shard.row.indices:
            with torch.no_grad():
                found = (*found, self.finished(self.carried(self.totals(), initial))[1])
        return self.with_final(found, carries[0].final)

    def gradients(self, tensors: Sequence[Tensor | None], number: Any, needs: Any, grads: Any) -> list[Tensor | None]:
        """Return the gradients as functions of inputs and incoming gradients, which can be differentiated."""
        x, mask, gate, initial = tensors
        assert x is not None
        read = self.shard.tensors._replace(x=x, mask=mask, gate=gate)
        outputs = self.composed(read, initial if number is None else number)
        pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
        pairs = [(y, torch.zeros_like(y) if g is None else g) for y, g in pairs]
        wanted = [each for each, need in zip(tensors, needs, strict=True) if need and each is not None]
        found = iter(torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=True,
                                         allow_unused=True))  # fmt: skip
        return [next(found) if need else None for need in needs]

    def exchanged_back(self, entry: Tensor, slope: Tensor, grad_final: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of the carries out of this rank's spans, and that of the initial value."""
        *own, finals = self.group.gathered((entry, slope, grad_final))
        entries, slopes = self.in_order(tuple(own))
        into, of_initial = shards.fold_back(slopes, entries, finals.sum(0))
        return [into[position] for position in self.layout.positions], of_initial

    def finished(self, carries: list[Carry]) -> Outputs:
        each = zip(self.parts(self.shard), carries, self.layout.starts, strict=True)
        return joined([shards.finish(part, carry, start) for part, carry, start in each], self.shard.call.dim)

    def place(self, lengths: list[int]) -> None:
        """Set where the shard lies if that counts, and turn offsets into head flags.

        ``lengths`` are those of all shards; where they are not known they are exchanged.
        """
        shard, position, layout = self.shard, self.group.position, self.layout
        if shard.tensors.offsets is None and not shard.row.indices:
            return
        x, offsets, dim = shard.tensors.x, shard.tensors.offsets, shard.call.dim
        if layout.width == 1 and lengths:
            layout = layout._replace(starts=(sum(lengths[:position]),))
        elif layout.width == 1:
            found = self.group.gathered([torch.full((), shard.length, device=x.device)])[0]
            layout = layout._replace(starts=(found[:position].sum(),))
        self.layout = layout
        if offsets is None:
            return
        if lengths:
            check_offsets(shard.call.name, offsets, x.new_empty(1).expand(sum(lengths)), 0)
        line = x.new_empty(1).expand([shard.length if d == dim else 1 for d in range(x.ndim)])
        pieces = zip(cut(Inputs(line), dim, layout.lengths), layout.starts, strict=True)
        of_spans: Any = [flags_along(None, offsets, piece.x, dim, shard.call.chunk, start) for piece, start in pieces]
        flags = of_spans[0] if len(of_spans) == 1 else torch.cat(of_spans, dim)
        self.shard = replace(shard, tensors=shard.tensors._replace(starts=flags, offsets=None))

    def in_order(self, stacked: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """States [rank, span, ...] as [position in scan order, ...]."""
        return tuple(in_order_of(self.layout.rows, each.flatten(0, 1)) for each in stacked)

    def with_final(self, found: Outputs, final: Tensor) -> Outputs:
        return (*found, final.to(self.shard.carry)) if self.shard.final else found


def _stacked(states: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(each) for each in zip(*states, strict=True))
