"""Method ``twopass``: the program of a call, and that of its backward pass.

Forward, each rank reduces its shard to one state per line, ranks exchange the states and scan them, and each scans its
shard with the carry-in that follows. Backward, the gradients of carries-in are exchanged, which give those of
carries-out; the scan of one GPU whose carry-in is an input and whose carry-out is a result has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from scanops.distributed import call_programs, shards
from scanops.distributed.call_programs import CallProgram
from scanops.distributed.composed import compose_gradients
from scanops.distributed.exchange import Exchange
from scanops.distributed.groups import is_captured
from scanops.distributed.prepared import Prepared
from scanops.distributed.shards import Carry, Shard
from scanops.distributed.spans import in_order_of
from scanops.ops.node import backward_pass
from scanops.ops.saved import saved_mask
from scanops.requests.request import Needs, RequestKind, Tensors, check_request
from scanops.requests.torch_state import runs_kernels
from scanops.runtime import call_cache
from scanops.runtime.policies import resumed
from scanops.runtime.recipes import Tape

__all__ = ["TwoPass"]

Outputs = tuple[Tensor, ...]
ENTRY = (False, False, False, True)  # the gradient of the carry-in alone


class Span(NamedTuple):
    """What the gradients of one span of a rank read, with the carry into it as an input of its scan."""

    kind: RequestKind  # of the span's scan, whose carry-out is used
    needs: Needs  # which gradients are asked for of results and carry-out: that of the carry-in is exchanged before
    keep: tuple[bool, ...]  # which of x, mask, gate, carry-in, results and indices these read
    keep_entry: tuple[bool, ...]  # likewise the gradient of the carry-in
    reads_before: bool  # whether the carry-in is saved
    reads_results: bool
    reads_total: bool  # whether the states that this rank has sent are saved

    def pull_back(self, grad: Tensor, of_final: Tensor | None, saved: Tensors, policy: str | None) -> Tensors:
        """Return the gradients of x, mask and gate; with ``of_final`` None that of the carry-in alone, and 3 None.

        ``saved`` are x, mask, gate, carry-in, results, None, head flags and None.
        """
        needs, keep = (self.needs, self.keep) if of_final is not None else (ENTRY, self.keep_entry)
        kept = [each if wanted else None for each, wanted in zip(saved[:6], keep, strict=True)]
        return backward_pass(self.kind, needs, (grad, of_final, *kept, *saved[6:]), policy)[0]


class TwoPass:
    """The programs of equal calls in two passes."""

    def __init__(self, scan: Prepared, *, flagged: bool) -> None:
        """``flagged``: whether the call has offsets, of which ranks make head flags when they know all lengths."""
        shard, layout = scan.shard, scan.layout
        self.scan, self._shard, self._layout, self._width, self._device = scan, shard, layout, layout.width, scan.device
        rising, in_place = list(range(len(layout.rows))), shard.tensors.starts is not None or bool(shard.row.indices)
        # States lie in the order of ranks: where scan order is that backwards they are scanned in reverse, but for
        # flags, which are read in one direction, and for indices.
        self._is_backwards = list(layout.rows) == rising[::-1] and not in_place
        self._is_ordered = self._is_backwards or list(layout.rows) == rising
        self._exchange = Exchange(
            scan.group, scan.message, scan.device, shard.length, shard.model, partial(shards.split_states, shard),
            width=layout.width, follows=flagged,
        )  # fmt: skip
        model = [*shard.backward_model, *[(shard.lines, shard.carry)] * shard.final]
        self._backward = Exchange(
            scan.group, scan.backward_message, scan.device, shard.length, model, partial(_split_gradients, shard),
            width=layout.width,
        )  # fmt: skip
        self._fold_carry = shard.wide if shard.row.gated else shard.carry
        # The initial value where it is a number, as the scan over ranks and that of the first span read it.
        self._constants: tuple[Tensor | None, ...] = (None, None)
        if scan.number is not None:
            of_ranks = torch.full((), scan.number, dtype=self._fold_carry, device=scan.device)
            self._constants = of_ranks, torch.full(shard.lines, scan.number, dtype=shard.carry, device=scan.device)
        self._count, self._is_plain_sum = 1 + bool(shard.row.indices) + shard.final, shard.is_plain_sum
        self._spans: tuple[Span, ...] = ()
        self._forward = CallProgram(self._record)

    # ---- forward

    def compute(self, tensors: Tensors) -> tuple[Outputs, Tensors, int]:
        """Return the outputs, what the node saves, and the number of the exchange."""
        found = self._forward(*tensors, *self._constants)
        outputs: Outputs = found[: self._count]  # type: ignore[assignment]
        saved = (None, None, None) if self._is_plain_sum else tensors[:3]
        return outputs, (*saved, tensors[5], *found[self._count :]), self.scan.group.ledger.count

    def _record(
        self, tape: Tape, x: Tensor, mask: Tensor | None, gate: Tensor | None,
        starts: Tensor | None, offsets: Tensor | None, initial: Tensor | None, of_ranks: Tensor | None,
        of_lines: Tensor | None,
    ) -> Tensors:  # fmt: skip
        scan, shard, row, begins = self.scan, self._shard, self._shard.row, None
        if offsets is not None:
            (lengths,) = tape.call(self._exchange.begin, offsets)
            assert lengths is not None
            if not (lengths.is_cpu or is_captured(self._device)):  # which waits for the GPU: at the first call alone
                self.scan.check_offsets(offsets, lengths)
            starts, begins = tape.call(self._place_flags, x, offsets, lengths)
        parts = self._split(tape, x, mask, gate, starts)
        totals = [self._find_totals(tape, *part) for part in parts]
        lengths, *states = tape.call(self._exchange.send, *[each for total in totals for each in total])
        if row.indices and begins is None:
            (begins,) = tape.call(self._find_starts, lengths)
        if not self._is_ordered:
            states = list(tape.call(partial(_reorder, self._layout.rows), *states))
        if initial is not None:
            of_ranks = tape.apply(partial(_convert, self._fold_carry), initial)
        after = places = None
        if row.indices:
            after, places = tape.call(partial(shards.fold_indices, shard), *states, of_ranks, begins)
        elif shard.final or self._layout.positions != (0,):
            over = shards.over_ranks(shard, reverse=self._is_backwards)
            value, other, flags = states
            (after,) = call_programs.scan(tape, over, value, None, other, flags, None, of_ranks)
        befores, results = [], []
        for part, position in zip(parts, self._layout.positions, strict=True):
            before = of_lines
            if position:
                before = tape.apply(partial(_take, self._place(position - 1), shard.carry), after)
            elif initial is not None and scan.is_first:
                before = tape.apply(lambda each: each.to(shard.carry).expand(shard.lines).contiguous(), initial)
            if row.indices:
                results.append(tape.call(partial(self._finish, position), *part, before, places, begins))
            else:
                results.append(call_programs.scan(tape, shard.call, *part, None, before))
            befores.append(before)
        outputs = results[0]
        if len(results) > 1:
            each_of = zip(*results, strict=True)
            outputs = tuple([tape.apply(lambda *each: torch.cat(each, shard.call.dim), *each) for each in each_of])
        if shard.final:
            last = self._place(len(self._layout.rows) - 1)
            outputs = (*outputs, tape.apply(lambda after: after[last].to(shard.carry, copy=True), after))
        if not scan.recorded or shard.is_plain_sum:
            return outputs
        return (*outputs, *self._list_saved((x, mask, gate, starts), befores, results, totals))

    def _list_saved(
        self, tensors: Tensors, befores: Sequence[Tensor | None], results: Sequence[Tensors],
        totals: Sequence[Tensors],
    ) -> Tensors:  # fmt: skip
        """Return head flags, and of each span its carry-in, results and states, as far as gradients read them."""
        self._spans = self._find_spans(self.scan.shard_of(*tensors), befores)
        read: list[Tensor | None] = [tensors[3]]
        for span, before, result, total in zip(self._spans, befores, results, totals, strict=True):
            read += [before if span.reads_before else None, result[0] if span.reads_results else None]
            read += total if span.reads_total else [None] * len(total)
        return tuple(read)

    def _find_spans(self, shard: Shard, befores: Sequence[Tensor | None]) -> tuple[Span, ...]:
        valued, asked, found = shard.valued, (*self.scan.needs[:3], False), []
        for part, before in zip(self.scan.parts(valued), befores, strict=True):
            call = replace(valued.call, final=True)
            kind = RequestKind(check_request(call, part.tensors._replace(offsets=None, initial=before)))
            kind.is_cached = True
            keep, keep_entry = saved_mask(kind, asked), saved_mask(kind, ENTRY)
            generic = valued.has_slopes and not valued.is_paired
            reads_before = keep[3] or generic or (keep_entry[3] and valued.has_slopes)
            reads_results = not shard.row.indices and (keep[4] or (keep_entry[4] and valued.has_slopes))
            found.append(Span(kind, asked, keep, keep_entry, reads_before, reads_results, generic))
        return tuple(found)

    def _split(self, tape: Tape, *tensors: Tensor | None) -> list[Tensors]:
        """Return x, mask, gate and head flags of each span of this rank."""
        if self._width == 1:
            return [tensors]

        def split(*tensors: Tensor | None) -> Tensors:
            parts = self.scan.parts(self.scan.shard_of(*tensors))
            return tuple([each for part in parts for each in part.tensors[:4]])

        found = tape.call(split, *tensors)
        return [found[4 * span : 4 * span + 4] for span in range(self._width)]

    def _find_totals(self, tape: Tape, *part: Tensor | None) -> Tensors:
        shard = self.scan.shard_of(*part)
        if shards.is_reducible(shard):
            reduce, dim, carry = shards.REDUCED[shard.row.name], shard.call.dim, shard.carry
            return tape.call(lambda x, *_: (reduce(x, dim, carry),), *part)
        if shard.is_reduced_to_pairs:
            pairs = call_programs.scan(tape, shards.call_of_pairs(shard), *part, None, None)
            if pairs:
                return pairs
        return tape.call(lambda *part: shards.totals(self.scan.shard_of(*part)), *part)

    def _place(self, position: int) -> int:
        """Return where the state at a position of scan order is among those of all ranks."""
        return len(self._layout.rows) - 1 - position if self._is_backwards else position

    def _find_starts(self, lengths: Tensor) -> tuple[Tensor]:
        """Return where the span at each position begins in the line."""
        return (self._layout.starts_of(lengths, self._shard.call.reverse).to(self._device),)

    def _place_flags(self, x: Tensor, offsets: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return head flags in place of offsets, and where spans begin. Raises for positions that are not of a line."""
        if lengths.is_cpu:
            self.scan.check_offsets(offsets, lengths)
        (begins,) = self._find_starts(lengths)
        return self.scan.place_flags(x, offsets, begins), begins

    def _finish(self, position: int, *given: Tensor | None) -> Tensors:
        """Return values and indices of a span."""
        *part, before, places, begins = given
        assert begins is not None and places is not None
        carry = Carry(before, places[-1], places[position - 1] if position else None)
        return shards.finish(self.scan.shard_of(*part), carry, begins[position])

    # ---- backward

    def differentiate(self, saved: Tensors, grads: Tensors, noted: int) -> Tensors:
        """Return the gradients as ``NAMES``; ``noted`` is the number of the forward pass."""
        scan, shard, (x, mask, gate, initial, *others) = self.scan, self._shard, saved or (None,) * 4
        starts = others[0] if others else None
        if torch.is_grad_enabled():
            outputs = (grads[0], *grads[2:]) if shard.row.indices else grads
            likes = ((shard.tensors.x.shape, shard.tensors.x.dtype), None, None, None)
            return compose_gradients(scan, outputs, (x, mask, gate, initial), starts, likes, noted)
        grad, of_final = grads[0], grads[-1] if shard.final else None
        if grad is None:
            grad = torch.zeros((), dtype=shard.result, device=self._device).expand(shard.tensors.x.shape)
        if shard.final:
            of_final = self._zeros() if of_final is None else of_final.contiguous()
        key, recipe = call_cache.recall_gradient(self, scan.needs, (grad, of_final), scan.policy)
        given = (grad, of_final, x, mask, gate, *others)
        self._backward.number = noted
        with resumed(scan.policy):  # autograd runs backward passes in threads of its own
            if recipe is not None:
                *found, of_initial, _, _ = recipe.again(given)
            else:
                (*found, of_initial), recipe = call_programs.record(self._record_backward, given)
                if recipe is not None and key is not None and scan.is_cached:
                    call_cache.remember(call_cache.GRADIENTS, key, recipe)
        if not scan.needs[3]:
            return (*found, None)
        assert scan.like_initial is not None and of_initial is not None
        # The first rank's alone, and no memory of the exchange.
        shape, dtype = scan.like_initial
        of_initial = of_initial if scan.is_first else torch.zeros_like(of_initial)
        return (*found, of_initial.sum_to_size(shape).to(dtype, copy=True))

    def _zeros(self) -> Tensor:
        return torch.zeros(self._shard.lines, dtype=self._shard.carry, device=self._device)

    def _record_backward(
        self, tape: Tape, grad: Tensor, of_final: Tensor | None, x: Tensor | None, mask: Tensor | None,
        gate: Tensor | None, starts: Tensor | None = None, *saved: Tensor | None,
    ) -> Tensors:  # fmt: skip
        scan, dim, shard = self.scan, self._shard.call.dim, self._shard
        is_plain, width = shard.is_plain_sum, self._width
        pieces: Tensors = (grad,)
        if width > 1:
            lengths = self._layout.lengths_of(shard.length)
            pieces = tape.call(lambda grad: tuple(each.contiguous() for each in grad.split(lengths, dim)), grad)
        parts: list[Tensors] = [(None,) * 4] * width if is_plain else self._split(tape, x, mask, gate, starts)
        of_span = len(saved) // width  # the carry-in, the results, and states
        each_of: list[Tensors] = [saved[span * of_span : (span + 1) * of_span] for span in range(width)]
        states: list[Tensor | None] = []
        for span, (piece, part, kept) in enumerate(zip(pieces, parts, each_of, strict=True)):
            states += self._find_entries(tape, span, piece, part, kept)
            if shard.final:  # the gradient of the carry-out is a state of the first span
                states += [of_final] if span == 0 else tape.call(lambda each: (torch.zeros_like(each),), of_final)
        _, entries, slopes, finals = tape.call(self._backward.send, *states)
        if not self._is_ordered:
            entries, slopes, finals = tape.call(partial(_reorder, self._layout.rows), entries, slopes, finals)
        of_line = None
        if finals is not None:
            assert entries is not None
            dtype = entries.dtype
            of_line = tape.apply(lambda finals: finals.sum(0, dtype=dtype), finals)
        over = shards.back_over_ranks(shard, reverse=not self._is_backwards)
        (after,) = call_programs.scan(tape, over, entries, None, slopes, None, None, of_line)
        of_initial = tape.apply(partial(_take, self._place(0), shard.carry), after)
        if not any(scan.needs[:3]):
            return (None, None, None, of_initial)
        found: list[Tensors] = []
        into: Tensor | None
        for span, (piece, part, kept) in enumerate(zip(pieces, parts, each_of, strict=True)):
            behind = self._layout.positions[span] + 1
            if behind < len(self._layout.rows):
                into = tape.apply(partial(_take, self._place(behind), shard.carry), after)
            elif of_line is not None:
                into = tape.apply(partial(_convert, shard.carry), of_line)
            else:
                (into,) = tape.call(lambda: (self._zeros(),))
            if is_plain:
                back = replace(shard.call, reverse=not shard.call.reverse, dtype=shard.result)
                found.append((*call_programs.scan(tape, back, piece, None, None, None, None, into), None, None))
            else:
                found.append(tape.call(partial(self._pull_back, span), piece, into, *part, *kept[:2]))
        if width == 1:
            return (*found[0], of_initial)
        operands = (None, mask, gate)
        whole = [
            None if each[0] is None else tape.apply(partial(_join_gradients, dim, shard.tensors.x.ndim), operand, *each)
            for operand, each in zip(operands, zip(*found, strict=True), strict=True)
        ]
        return (*whole, of_initial)

    def _find_entries(self, tape: Tape, span: int, piece: Tensor | None, part: Tensors, kept: Tensors) -> Tensors:
        """Return the states of a span that ranks exchange, as ``Shard.backward_model`` describes them."""
        shard, dim = self._shard.valued, self._shard.call.dim
        assert piece is not None
        if not shard.has_slopes:
            return (tape.apply(lambda piece: piece.sum(dim, dtype=shard.carry), piece),)
        valued = self.scan.shard_of(*part).valued
        if kept[0] is not None and valued.has_paired_entries and piece.dtype == shard.result and runs_kernels((piece,)):
            call, (_, mask, gate, _) = shards.call_of_entry(valued), part
            pairs = call_programs.scan(tape, call, piece, mask, gate, None, None, None)
            if pairs:
                return pairs
        return tape.call(partial(self._compute_entries, span), piece, *part, *kept)

    def _compute_entries(self, span: int, piece: Tensor, *given: Tensor | None) -> Tensors:
        """Return the gradient of the carry-in of a span from that of its results, and how its carry-out follows."""
        part, (before, results, *total) = given[:4], given[4:]
        shard, of_span = self.scan.shard_of(*part).valued, self._spans[span]
        if before is None:  # nothing reads them
            zero = torch.zeros(shard.lines, dtype=shard.backward_model[0][1], device=piece.device)
            return (zero,) if shard.is_paired else (zero, torch.ones_like(zero, dtype=shard.of_slopes))
        if self._shard.row.indices:
            del total[1:2]
        saved = self._list_read(of_span, part, before, results)
        entry = of_span.pull_back(piece, None, saved, self.scan.policy)[3]
        entry = self._zeros() if entry is None else entry
        if shard.is_paired:
            return (torch.complex(entry.double(), shards.product_of_gates(shard)),)
        return entry.to(shard.carry), shards.find_slopes(shard, tuple(total), before)  # type: ignore[arg-type]

    def _pull_back(self, span: int, piece: Tensor, into: Tensor, *given: Tensor | None) -> Tensors:
        """Return the gradients of x, mask and gate of a span, from those of its results and its carry-out."""
        *part, before, results = given
        of_span = self._spans[span]
        saved = self._list_read(of_span, part, before, results)
        return of_span.pull_back(piece, into, saved, self.scan.policy)[:3]

    def _list_read(
        self, span: Span, part: Sequence[Tensor | None], before: Tensor | None, results: Tensor | None
    ) -> Tensors:
        """Return what the gradients of a span may read."""
        x, mask, gate, starts = part
        if self._shard.row.indices and (span.keep[4] or span.keep_entry[4]):  # the values alone
            assert x is not None
            call = self._shard.valued.call
            results = shards.scan_local(call, x, mask=mask, gate=gate, starts=starts, initial=before)
        # Those of several spans may be views, which kernels do not read.
        return (x, mask, gate, before, None if results is None else results.contiguous(), None, starts, None)


# ---- steps


def _split_gradients(shard: Shard, states: Outputs) -> Tensors:
    entries, slopes = shards.split_gradients(shard, states)
    return entries, slopes, states[-1] if shard.final else None


def _reorder(rows: Sequence[int], *states: Tensor | None) -> Tensors:
    return tuple([None if each is None else in_order_of(rows, each) for each in states])


def _convert(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype)


def _take(place: int, dtype: torch.dtype, states: Tensor) -> Tensor:
    found = states[place]
    return found if found.dtype == dtype else found.to(dtype)


def _join_gradients(dim: int, rank: int, operand: Tensor | None, *pieces: Tensor) -> Tensor:
    """The gradient of an operand, None for x, from those of its spans: of what belongs to each span, their sum."""
    at = dim if operand is None else dim - rank + operand.ndim
    if operand is not None and (at < 0 or operand.shape[at] == 1):
        return torch.stack(pieces).sum(0)
    return torch.cat(pieces, at)
