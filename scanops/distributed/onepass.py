"""Method ``onepass``: the links of ranks, and what calls in one pass and their backward passes do.

Each rank's kernel waits for the state at the end of a line of the rank before, while it scans other lines: every item
is read once and written once, and no collective runs.

Source: tile status as in Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016), here
between GPUs.
"""

from __future__ import annotations

import math
import socket
from dataclasses import replace

import torch
from torch import Tensor

from scanops.codegen.dtypes import dtype_named
from scanops.distributed import call_programs
from scanops.distributed.call_order import CallOrder
from scanops.distributed.call_programs import CallProgram
from scanops.distributed.composed import compose_gradients
from scanops.distributed.exchange import Exchange, digest_of, refuse_capture
from scanops.distributed.groups import is_captured
from scanops.distributed.links import CarryIn, Link
from scanops.distributed.prepared import Prepared
from scanops.errors import UnsupportedRequest
from scanops.ops.node import backward_pass
from scanops.ops.saved import compares_rounded_results, saved_mask
from scanops.requests.call import Call
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import Inputs, RequestKind, Tensors, check_request
from scanops.requests.sharding import Sharding
from scanops.runtime import native
from scanops.runtime.launcher import Launcher
from scanops.runtime.policies import resumed
from scanops.runtime.recipes import Tape

__all__ = ["OnePass", "SharedFinal", "add_neutral_items", "find_link"]

Outputs = tuple[Tensor, ...]


def find_link(scan: Prepared) -> Link | None:
    """Return the link of this rank to others, None where ranks have none: on several hosts, say.

    All ranks look for it at the first call of a group. Raises PeerMismatch, and UnsupportedRequest for a first call in
    a CUDA graph and, on all ranks, where there is no link and the call asks for one pass by name.
    """
    ledger, digest, device = scan.group.ledger, scan.message.digest, scan.device
    if digest not in ledger.compared and is_captured(device):
        raise refuse_capture(scan.message.who)
    if device not in ledger.links:
        ledger.links[device] = _make_link(scan, device)
    link = ledger.links[device]
    if isinstance(link, Link):
        ledger.compared.add(digest)
        return link
    if scan.is_asked:
        raise UnsupportedRequest(
            f"{scan.message.who}: method 'onepass' does not serve this group: {link}",
            allowed="ranks on one host, whose GPUs write one another's memory",
            value=f"method='onepass', {link}",
            hint="leave method out, or pass method='twopass', on all ranks",
        )
    return None


def _make_link(scan: Prepared, device: torch.device) -> Link | str:
    """Return a link if every rank of the group is on this host and has made one, else the reason, on all ranks."""
    group, link = scan.group, None
    host = torch.tensor([digest_of(socket.gethostname())], device=device)
    _, hosts = Exchange(group, scan.message.derive("links"), device, model=[((1,), torch.int64)]).send(host)
    assert hosts is not None
    if bool((hosts != host).any()):
        return "its ranks are on several hosts"
    try:
        order = group.ledger.order or CallOrder(group)
        assert isinstance(order, CallOrder)
        link, problem = Link(group, device, order), ""
        link.reserve(1)
        group.ledger.order = order
    except (UnsupportedRequest, OSError) as refused:
        problem = str(refused).partition("\n")[0]
    found = next(filter(None, group.gather_words(problem)), link)
    assert found is not None
    return found


class SharedFinal:
    """The carry-out of a line on all ranks: the last rank in scan order has it, and hands it on against that order.

    The others add zeros to its bits, in a scan of linked lines of one item. The gradients that ranks give to it add up
    in scan order, on the last rank. So the ranks exchange it as they do states, and no collective runs.
    """

    def __init__(self, link: Link, call: Call, carry: torch.dtype, lines: torch.Size) -> None:
        self.link, self.carry, self.lines = link, carry, lines
        self._bits = torch.int64 if carry.itemsize == 8 else torch.int32
        self._narrow = {1: torch.int8, 2: torch.int16}.get(carry.itemsize, self._bits)
        self._call_of_bits = Call("sum", 0, not call.reverse, dtype=self._bits, link=link)
        self._call_of_gradients = Call("sum", 0, call.reverse, dtype=carry, link=link)
        self._spread, self._add_up = CallProgram(self._record_spread), CallProgram(self._record_add_up)

    def share(self, found: Outputs) -> Outputs:
        """Return the results of a rank with the carry-out of the line, which the last rank's have at their end."""
        (final,) = self._spread(found[1] if len(found) > 1 else None)
        return found[0], final  # type: ignore[return-value]

    def add_up(self, gradient: Tensor | None) -> Tensor:
        """Return, on the last rank, the sum of the gradients that ranks give to the carry-out; None counts as zeros."""
        return self._add_up(gradient)[0]  # type: ignore[return-value]

    def _record_spread(self, tape: Tape, final: Tensor | None) -> Tensors:
        own = tape.apply(self._widen, final)
        (bits,) = call_programs.scan(tape, self._call_of_bits, own, None, None, None, None, None)
        return tape.call(lambda bits: (bits.to(self._narrow).view(self.carry).view(self.lines),), bits)

    def _widen(self, final: Tensor | None) -> Tensor:
        if final is None:
            return torch.zeros((1, self.lines.numel()), dtype=self._bits, device=self.link.device)
        return final.reshape(1, -1).view(self._narrow).to(self._bits)

    def _record_add_up(self, tape: Tape, gradient: Tensor | None) -> Tensors:
        own = tape.apply(self._align, gradient)
        (total,) = call_programs.scan(tape, self._call_of_gradients, own, None, None, None, None, None)
        return tape.call(lambda total: (total.view(self.lines),), total)

    def _align(self, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            return torch.zeros((1, self.lines.numel()), dtype=self.carry, device=self.link.device)
        gradient = gradient.to(self.carry).resolve_neg().contiguous().view(1, -1)
        return gradient.clone() if gradient.data_ptr() % ALIGNMENT else gradient


class OnePass:
    """What equal calls in one pass do, and the backward pass of their nodes, which are Python's or in C++.

    The first rank in scan order may have the carry-in, and the last one has the carry-out. The initial value is an
    input of the node on every rank, with a gradient of zeros on all but the first in scan order.
    """

    def __init__(self, scan: Prepared, link: Link, given: Inputs) -> None:
        self.scan, self.link, shard, lines = scan, link, scan.shard, scan.shard.lines
        assert link.order is not None
        self.order = link.order
        self.registrations = 0, 0  # a generation of the native table, and how often it was told of this
        self._call = replace(shard.call, link=link, final=shard.final and scan.is_last, dtype=shard.result)
        self._final = SharedFinal(link, self._call, shard.carry, lines) if shard.final else None
        self._constant = None  # the initial value where it is a number, as the kernel of the first rank reads it
        if scan.number is not None and scan.is_first:
            self._constant = torch.full((), scan.number, dtype=shard.carry, device=link.device)
        self._like_x = given.x.shape, given.x.dtype
        # Whether this rank's kernel reads the initial value; and the gradients that its kernels compute.
        self.reads_initial = scan.is_first and given.initial is not None
        self._own_needs = (*scan.needs[:3], scan.needs[3] and self.reads_initial)
        carry_in = given.initial if self._constant is None else self._constant
        own = given._replace(offsets=None, initial=carry_in if self.reads_initial else None)
        self.kind = kind = RequestKind(check_request(self._call, own))
        kind.is_cached = True
        self._keeps = saved_mask(kind, scan.needs)
        # Where kernels read some tensors, the node saves all inputs, for derivatives of higher order.
        there = (*[each is not None for each in kind.shapes], True, kind.indexed)
        self.saves = kind.segmented or any(kept and given for kept, given in zip(self._keeps, there, strict=True))
        gradient = kind.request.operator.gradient
        reads_before = gradient is not None and gradient.saved == "before" and saved_mask(kind, self._own_needs)[4]
        reads_before = reads_before or (any(self._own_needs) and compares_rounded_results(kind))
        is_entered = link.find_neighbours(self._call.reverse)[0] is not None
        self._reads_entered = reads_before and is_entered  # whether the backward pass does read what comes from a rank
        self._entered: CarryIn | None = None
        self._lines = lines
        self._launch = CallProgram(self._record)
        self.launcher: Launcher | None = None  # that has served the call, for C++
        self.adjoint: int | None = None  # by which C++ asks for gradients

    # ---- forward

    def note(self) -> tuple[int, int]:
        """Let other ranks hear of the call; return its place in the order of calls, which its backward pass notes."""
        self.order.note(self.scan.message)
        return self.scan.group.ledger.count, self.order.count

    def launch(self, tensors: Tensors) -> Outputs:
        """Return what this rank's kernel writes for tensors like those of the call."""
        initial = (tensors[5] if self._constant is None else self._constant) if self.scan.is_first else None
        with self.link:
            return self._launch(*tensors[:4], initial)  # type: ignore[return-value]

    def _record(self, tape: Tape, *tensors: Tensor | None) -> Tensors:
        given = (*tensors[:4], None, tensors[4])
        found = call_programs.scan(tape, self._call, *given)
        self.launcher, self._entered = call_programs.find_launcher(self._call, given), None
        return found

    def finish(self, found: Outputs) -> tuple[Outputs, Tensor | None]:
        """Return the outputs, and the carry-in that came from another rank, where a gradient reads it."""
        entered = None
        if self._reads_entered:
            if self._entered is None:
                self._entered = self.link.view_carry_in(self.kind, self._lines)
            entered = self._entered.read()
        return found if self._final is None else self._final.share(found), entered

    def compute(self, tensors: Tensors) -> tuple[Outputs, Tensors, tuple[int, int]]:
        """Return the outputs, what is saved in the order of nodes in C++, and the place of the call."""
        noted = self.note()
        outputs, entered = self.finish(self.launch(tensors))
        if not (self.scan.recorded and self.saves):
            return outputs, (), noted
        y = outputs[0] if self._keeps[4] else None
        x, mask, gate, starts, _, initial = tensors
        initial = initial if self._constant is None else self._constant
        return outputs, (x, mask, gate, initial, y, None, starts, entered), noted

    # ---- backward

    def differentiate(self, saved: Tensors, grads: Tensors, noted: tuple[int, int]) -> Tensors:
        """Return the gradients as ``NAMES``."""
        grad, of_final = grads[0], grads[1] if len(grads) > 1 else None
        *tensors, entered = saved or (None,) * 8
        policy = self.scan.policy
        if not torch.is_grad_enabled():
            grad, of_final = self.begin(policy, noted, grad, of_final) or (grad, of_final)
        return self(policy, (grad, of_final, *tensors), entered, noted)

    def begin(
        self, policy: str | None, noted: tuple[int, int], grad: Tensor | None, of_final: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Note the pass, which is not recorded itself, for other ranks. Return its gradients if they are others now."""
        self.order.note(self.scan.backward_message, noted[1])
        if grad is not None and self._final is None:
            return None
        grad = self._gradient_or_zeros(grad)
        if self._final is None:
            return grad, of_final
        with self.link, resumed(policy):  # autograd runs backward passes in threads of its own
            of_line = self._final.add_up(of_final)  # on all ranks, whether their losses depend on it or not
        return grad, of_line if self.kind.final else None

    def __call__(
        self, policy: str | None, given: Tensors, entered: Tensor | None, noted: tuple[int, int]
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients as ``NAMES``.

        ``given`` is as in ``backward_pass``, with no offsets; ``entered``: the carry-in that reached this rank. The
        pass has begun unless it is recorded itself.
        """
        grad, of_final, x, mask, gate, initial, y, indices, starts, *_ = given
        if torch.is_grad_enabled():
            grads = (self._gradient_or_zeros(grad), of_final)[: 1 + self.scan.shard.final]
            likes = (self._like_x, None, None, self.scan.like_initial if self.scan.needs[3] else None)
            return compose_gradients(self.scan, grads, (x, mask, gate, initial), starts, likes, noted[0])
        assert grad is not None
        own = initial if self.reads_initial else entered
        read = zip((x, mask, gate, own, y, indices), self._keeps, strict=True)
        kept = [each if wanted else None for each, wanted in read]
        passed = (grad, of_final, *kept, starts, None)
        with self.link:
            found, recipe = backward_pass(self.kind, self._own_needs, passed, policy)
        if recipe is not None and self.adjoint is not None:
            begin = initial if entered is None else entered
            read_by_cpp = (grad, of_final, x, mask, gate, begin, y, indices, starts, None)
            native.register_gradient(self.adjoint, read_by_cpp, recipe)
        of_initial = found[3]
        if self.scan.needs[3] and of_initial is None:
            shape, dtype = self.scan.like_initial or ((), None)
            of_initial = torch.zeros(shape, dtype=dtype, device=grad.device)
        return (*found[:3], of_initial)

    def _gradient_or_zeros(self, grad: Tensor | None) -> Tensor:
        """Return the gradient of the result."""
        like = {"dtype": self.scan.shard.result, "device": self.link.device}
        return torch.zeros(self._like_x[0], **like) if grad is None else grad  # type: ignore[call-overload]

    # ---- C++

    def register(self, asked: Call, sharding: Sharding, given: Inputs) -> None:
        """Let C++ serve calls like this one, which the user gave as ``asked``, if a launch has served it."""
        launcher = self.launcher if self._launch.is_known else None
        if launcher is None or not launcher.own or self.scan.number is not None or not native.should_register(self):
            return
        adjoints: tuple[native.CallGradient, ...] = ()
        if self.scan.recorded:
            self.adjoint = next(native.NUMBERS)
            # Of x, mask, gate, initial, result, indices and starts.
            saves = (True, True, True, True, self._keeps[4], False, True) if self.saves else ()
            saved = native.list_saved(saves)
            adjoints = (native.CallGradient(self.scan.needs, self.adjoint, saved, self, self.begin),)
        options = {**native.options_of(asked), **sharding._asdict(), "function": self.scan.message.who}
        link = native.LinkedCall(self.note, self.finish if self._final is not None or self._reads_entered else None)
        native.register_call(options, given, launcher, final=self.scan.shard.final, adjoints=adjoints, link=link)


def add_neutral_items(call: Call, result: torch.dtype, given: Inputs) -> Inputs:
    """Return the tensors of a rank without items with an item for each line that changes no state."""
    x, mask = given.x, given.mask
    if call.op in ("max", "min"):  # items that are masked out are the only ones that never give the value
        x, mask = (x, mask) if mask is None or mask.dtype == torch.bool else (x * mask, None)
        mask = torch.zeros((), dtype=torch.bool, device=x.device) if mask is None else mask
    shape, x = x.shape, x.to(result)  # which holds the neutral item
    x = torch.cat([x, _neutral_items(call, x)], call.dim)

    def lengthen(each: Tensor | None, value: int) -> Tensor | None:
        if each is None:
            return None
        return torch.cat([each.expand(shape), torch.full_like(x, value, dtype=each.dtype)], call.dim)

    mask = lengthen(mask, 0 if mask is not None and mask.dtype == torch.bool else 1)
    return given._replace(x=x, mask=mask, gate=lengthen(given.gate, 1), starts=lengthen(given.starts, 0))


def _neutral_items(call: Call, x: Tensor) -> Tensor:
    shape = [1 if d == call.dim else size for d, size in enumerate(x.shape)]
    row = dtype_named(x.dtype)
    value = {"prod": 1, "max": row.lowest, "min": row.highest, "logcumsumexp": -math.inf}.get(call.op, 0)
    return torch.full(shape, value, dtype=x.dtype, device=x.device)
