"""Sharded calls: what serves a call, which equal calls find again by its key."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops import torch_private as private
from scanops.distributed import shards
from scanops.distributed.composed import scan_traced
from scanops.distributed.exchange import Exchange
from scanops.distributed.groups import Group, is_captured
from scanops.distributed.onepass import OnePass, add_neutral_items, find_link
from scanops.distributed.prepared import Prepared, prepare
from scanops.distributed.shards import Carry, record_with
from scanops.distributed.spans import join_spans
from scanops.distributed.twopass import TwoPass
from scanops.ops.node import ScanFunction, ShardedForward
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from scanops.runtime import call_cache

__all__ = ["scan_sharded"]

Outputs = tuple[Tensor, ...]


def scan_sharded(who: str, call: Call, given: Inputs, asked: Call | None = None) -> Outputs:
    """Return this rank's results, and the carry-out of the whole line if the call asks for it.

    ``call.sharding`` says which ranks have the line; ``who`` is the public function; ``asked`` is the call as the
    user gave it, which C++ knows it by. Raises UnsupportedRequest, PeerMismatch or PeerLost.
    """
    assert call.sharding is not None and isinstance(call.sharding.group, Group)
    group = call.sharding.group
    if is_compiling():
        scan, shard = prepare(who, call, given)
        if group.size == 1 and scan.layout.width == 1:
            return shards.scan_again(replace(call, sharding=None), *given[:6])
        if 0 in shard.lines:
            return _scan_nothing(scan, given)
        return scan_traced(who, scan, shard, given.initial)
    served: ServedCall | None
    key, served = call_cache.recall_prepared(_key_of(who, call, given))
    if served is None:
        served = ServedCall(prepare(who, call, given)[0], call, asked)
        if key is not None:
            served.scan.is_cached = call_cache.remember(call_cache.PREPARED, key, served)
    if not served.is_alone and is_captured(given.x.device):
        group.check_captured(who)
    return served.run(given)


def _key_of(who: str, call: Call, given: Inputs) -> call_cache.Key | None:
    """Return the key of the call with what else is equal of equal calls of ranks; None for calls without one."""
    if private.are_transforms_active() or private.dual_level() >= 0 or private.count_modes():
        return None
    initial = None if isinstance(given.initial, Tensor) else given.initial
    tensors = given if initial is None else given._replace(initial=None)
    key = call_cache.key_of(call, tensors)
    if key is None or not {type(each) for each in tensors.flat}.issubset(_PLAIN):
        return None
    if any([each is not None and (each.is_conj() or each.is_neg()) for each in tensors.flat]):  # the key does not say
        return None
    needs = [each is not None and each.requires_grad for each in tensors.flat]
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"), private.is_autograd_excluded()
    return (who, type(initial), initial, *needs, *modes, *key)


_PLAIN = {Tensor, torch.nn.Parameter, type(None)}


def _scan_nothing(scan: Prepared, given: Inputs) -> Outputs:
    """Return the outputs of a shard without lines, which depend on the inputs as those of other ranks do."""
    shard = scan.shard_of(*given[:5])
    empty = given.x.new_empty(shard.lines, dtype=shard.carry)
    with torch.no_grad():
        parts = [shards.finish(part, Carry(None, empty), 0) for part in scan.parts(shard)]
        found = join_spans(parts, shard.call.dim)
    if scan.recorded:
        for leaf in (each for each in given.differentiable if isinstance(each, Tensor) and each.requires_grad):
            found, empty = (record_with(leaf, found[0]), *found[1:]), record_with(leaf, empty)
    return (*found, *[empty] * shard.final)


class ServedCall:
    """What serves equal calls: a prepared call, and its programs by the method that ranks have chosen."""

    def __init__(self, scan: Prepared, call: Call, asked: Call | None) -> None:
        self.scan, self._call, self._sharding, self._asked = scan, replace(call, sharding=None), call.sharding, asked
        self.is_alone = scan.group.size == 1 and scan.layout.width == 1
        self._has_lines, self._is_empty = 0 not in scan.shard.lines, not scan.shard.length
        self._is_plain = False  # whether the tensors of equal calls are read as they are
        self._method: OnePass | TwoPass | None = None

    def run(self, given: Inputs) -> Outputs:
        """Return the outputs for tensors like those that the call was prepared for."""
        scan, read = self.scan, given
        if not self._is_plain:
            read = scan.convert(given)
            self._is_plain = all([mine is theirs for mine, theirs in zip(read, given, strict=True)])
        if self.is_alone:
            return shards.scan_again(self._call, *given._replace(x=read.x)[:6])
        if not self._has_lines:
            return self._compare(read)
        link = find_link(scan) if self._method is None and scan.method == "onepass" else None
        is_filled = self._is_empty and (link is not None or isinstance(self._method, OnePass))
        if is_filled:
            read = add_neutral_items(scan.shard.call, scan.shard.result, read)
        if self._method is None:
            is_flagged = read.offsets is not None
            self._method = TwoPass(scan, flagged=is_flagged) if link is None else OnePass(scan, link, read)
        if isinstance(self._method, OnePass) and self._asked and self._sharding and self._is_plain and not is_filled:
            self._method.register(self._asked, self._sharding, given)
        tensors = (*read[:5], read.initial if scan.number is None else None)
        if scan.recorded:
            found = ScanFunction.record(ShardedForward(self._method), tensors)
        else:
            found = self._method.compute(tensors)[0]
        return (found[0].narrow(scan.shard.call.dim, 0, 0), *found[1:]) if is_filled else found

    def _compare(self, read: Inputs) -> Outputs:
        """Return the outputs of ranks that have no states to exchange, and compare their calls."""
        scan = self.scan
        (lengths,) = Exchange(scan.group, scan.message, scan.device, scan.shard.length).begin(read.offsets)
        if read.offsets is not None and lengths.is_cpu:
            scan.check_offsets(read.offsets, lengths)
        return _scan_nothing(scan, read)
