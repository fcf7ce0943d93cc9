"""How a sharded scan is computed, what it moves and how long that takes: a model, as no such machine was measured.

The constants are those of one NVIDIA H200 for memory, and those of NCCL 2.30 (src/graph/tuning.cc, rings) for the
all_gather. Nothing is measured here, and no GPU is needed. All ranks get the same answer, whatever GPUs they have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from scanops.codegen.dtypes import DTYPES
from scanops.codegen.figures import lines_for
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import Target
from scanops.errors import UnsupportedRequest

if TYPE_CHECKING:
    from scanops.distributed.shards import Shard

__all__ = ["Sharding", "chosen", "sharding"]

COPY = 0.885  # bandwidth of a copy, relative to the data sheet's: 4.25 of 4.8 TB/s, measured on an H200
H200 = 4.25e6  # bytes per us of that copy
L2 = 26e6  # bytes of a shard that its second read finds in L2; assumed
LAUNCH = 2.0  # us of each kernel beyond the first, in a stream that is full; assumed
BAND = 6.0  # us of each band beyond its bytes: a receive, a launch that fills the GPU, a send; assumed
HOP = 10.0  # us from the end of a band's kernel to the begin of the next rank's; assumed
MOST_BANDS = 128
UNKNOWN_BANDS = 16  # where the length of the line is not known to all ranks
NODE = 8  # GPUs on one NVLink domain
# (us at any size, us per further rank of a node, us per further node, bytes per us), of each protocol
IN_NODE = ((6.6, 0.6, 0.0, 0.10e6), (14.0, 1.9, 0.0, 0.30e6), (8.4, 3.4, 0.0, 0.36e6))
ACROSS = ((6.6, 1.0, 2.7, 0.035e6), (8.4, 3.4, 14.0, 0.36e6))
REDUCED = ("sum", "prod", "max", "min", "logcumsumexp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The method of a sharded scan and what it costs on each rank."""

    method: str  # "one", "twopass" or "chain"
    ranks: int
    lines: int
    bands: int  # of lines, of method chain; 1 for others
    moved: int  # bytes of device memory that a rank reads and writes, as far as L2 does not serve them
    sent: int  # bytes of states that a rank receives
    exchange_us: float
    us: float
    relative: float  # speed, relative to the ranks times one GPU that has all it needs in one pass
    why: str


class Facts(NamedTuple):
    """What the costs of a sharded scan follow from; bytes are those of one rank."""

    ranks: int
    lines: int
    bands: int  # the most bands that the lines can be divided into
    read: int
    written: int
    again: int  # read once more for the states of the shards beyond x: gates, whose product is one
    state: int  # bytes of the state of a line, as ranks exchange it
    carry: int  # bytes of its result, as a chain sends it
    reduced: bool  # whether a reduction gives the states, in place of a scan
    places: int  # moved to turn indices in the shard into those in the line

    @property
    def moved(self) -> int:
        """The bytes of one pass."""
        return self.read + self.written


def sharding(spec: ScanSpec, target: Target, ranks: int, lines: int | None = None) -> Sharding:
    """Return how lines of ``ranks`` shards of this spec are scanned; its length is that of a shard.

    Raises UnsupportedRequest for a number of ranks that is not positive, and for a spec without a length.
    """
    if ranks < 1 or spec.takes_length:
        raise UnsupportedRequest(
            "plan: a sharded scan needs ranks, and shards of a known length",
            allowed="one rank or more, and a spec of one length",
            value=f"ranks={ranks}, spec={spec.slug}",
            hint="pass --ranks 8 and a spec such as sum-f32-n131072",
        )
    lines = lines or lines_for(spec, target.multiprocessors)
    bandwidth = target.bandwidth * COPY * 1e3  # bytes per us
    items, row, outer = lines * spec.capacity, spec.operator, lines // max(spec.inner, 1)
    facts = Facts(
        ranks=ranks,
        lines=lines,
        bands=outer if outer > 1 else max(spec.inner, 1),
        read=items * spec.read_bytes,
        written=items * sum(spec.result_bytes),
        again=DTYPES[spec.gate].bytes * items if spec.gate else 0,
        state=spec.carry.bytes * (2 if row.gated else 1) + (8 if row.indices else 0) + (1 if spec.segments else 0),
        carry=spec.carry.bytes,
        reduced=row.name in REDUCED and not (spec.mask or spec.segments),
        places=16 * items if row.indices else 0,
    )
    if ranks == 1:
        us = facts.moved / bandwidth
        return Sharding(method="one", ranks=1, lines=lines, bands=1, moved=facts.moved, sent=0, exchange_us=0.0, us=us,
                        relative=1.0, why="one rank has whole lines")  # fmt: skip
    return _best(facts, bandwidth)


def chosen(method: str, shard: Shard, ranks: int, items: int) -> int:
    """Return the number of bands if a call is to be computed by method ``chain``, else 0: the same on all ranks.

    ``items`` are those of the whole line, 0 where ranks do not know them. The model is one of GPUs: on CPUs "auto" is
    ``twopass``.
    """
    if method == "twopass" or shard.row.indices or (method == "auto" and not (shard.tensors.x.is_cuda and items)):
        return 0
    shape, dim, lines = shard.tensors.x.shape, shard.call.dim, shard.lines.numel()
    bands = next((size for d, size in enumerate(shape) if d != dim and size > 1), 1)
    if not items:
        return min(bands, UNKNOWN_BANDS)
    of_rank = lines * math.ceil(items / ranks)
    x, mask, gate, starts, *_ = shard.tensors
    beside = sum(each.itemsize for each in (mask, gate, starts) if each is not None and each.numel() >= x.numel() > 0)
    facts = Facts(
        ranks=ranks,
        lines=lines,
        bands=bands,
        read=of_rank * (x.itemsize + beside),
        written=of_rank * shard.result.itemsize,
        again=of_rank * gate.itemsize if gate is not None else 0,
        state=shard.carry.itemsize * (2 if gate is not None else 1),
        carry=shard.carry.itemsize,
        reduced=shard.row.name in REDUCED and mask is None and starts is None and x.dtype == shard.result,
        places=0,
    )
    if method == "chain":
        return _chain(facts, H200).bands
    best = _best(facts, H200)
    return best.bands if best.method == "chain" else 0


def _best(facts: Facts, bandwidth: float) -> Sharding:
    twopass = _twopass(facts, bandwidth)
    if facts.places:
        return twopass
    chain = _chain(facts, bandwidth)
    return chain if chain.us < twopass.us else twopass


def _twopass(facts: Facts, bandwidth: float) -> Sharding:
    read, written = facts.read, facts.written
    first = read if facts.reduced else read + written + facts.again
    again = max(0.0, read - L2) if facts.reduced else read
    moved = int(first + again + written + facts.places)
    exchange = all_gather(facts.ranks, facts.lines * facts.state)
    us = moved / bandwidth + exchange + 2 * LAUNCH
    why = (
        f"{'a reduction' if facts.reduced else 'a scan'} gives the state of each shard, the ranks exchange "
        f"{facts.state} bytes a line, and a scan begins with the carry from the ranks before: no rank can store an "
        "item before all before it were read, so each reads its shard twice"
    )
    return _answer(facts, "twopass", 1, moved, (facts.ranks - 1) * facts.lines * facts.state, exchange, us, bandwidth,
                   why)  # fmt: skip


def _chain(facts: Facts, bandwidth: float) -> Sharding:
    alone, ranks = facts.moved / bandwidth, facts.ranks

    def time(bands: int) -> float:
        return (alone + BAND * bands) * (bands + ranks - 1) / bands + HOP * (ranks - 1)

    bands = min(range(1, min(facts.bands, MOST_BANDS) + 1), key=time)
    why = (
        f"each rank scans {bands} bands of lines one after the other, and sends their carries-out, {facts.carry} bytes "
        f"a line, to the next: one pass over memory, in {bands + ranks - 1} steps in place of {bands}"
    )
    waits = HOP * (ranks - 1) + BAND * bands
    return _answer(facts, "chain", bands, facts.moved, facts.lines * facts.carry, waits, time(bands), bandwidth, why)


def _answer(facts: Facts, method: str, bands: int, moved: int, sent: int, exchange: float, us: float, bandwidth: float,
            why: str) -> Sharding:  # fmt: skip
    return Sharding(method=method, ranks=facts.ranks, lines=facts.lines, bands=bands, moved=moved, sent=sent,
                    exchange_us=exchange, us=us, relative=facts.moved / bandwidth / us, why=why)  # fmt: skip


def all_gather(ranks: int, size: int) -> float:
    """Return the time of NCCL's all_gather of ``size`` bytes from each rank, in us: the best of its protocols."""
    nodes = -(-ranks // NODE)
    total, inner = (ranks - 1) * size, ranks - nodes
    rows = IN_NODE if nodes == 1 else ACROSS
    return min(base + inner * near + (nodes - 1) * far + total / rate for base, near, far, rate in rows)
