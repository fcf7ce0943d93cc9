"""How a sharded scan is computed, what it moves and how long that takes: a model, as no such machine was measured.

The constants are those of one NVIDIA H200 for memory, and those of NCCL 2.30 (src/graph/tuning.cc, rings) for the
all_gather. Nothing is measured here, and no GPU is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.dtypes import DTYPES
from scanops.codegen.figures import lines_for
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import Target
from scanops.errors import UnsupportedRequest

__all__ = ["Sharding", "sharding"]

COPY = 0.885  # bandwidth of a copy, relative to the data sheet's: 4.25 of 4.8 TB/s, measured on an H200
L2 = 26e6  # bytes of a shard that its second read finds in L2; assumed
LAUNCH = 2.0  # us of each kernel beyond the first, in a stream that is full; assumed
NODE = 8  # GPUs on one NVLink domain
# (us at any size, us per further rank of a node, us per further node, bytes per us), of each protocol
IN_NODE = ((6.6, 0.6, 0.0, 0.10e6), (14.0, 1.9, 0.0, 0.30e6), (8.4, 3.4, 0.0, 0.36e6))
ACROSS = ((6.6, 1.0, 2.7, 0.035e6), (8.4, 3.4, 14.0, 0.36e6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The method of a sharded scan and what it costs on each rank."""

    method: str  # "one" or "twopass"
    ranks: int
    lines: int
    moved: int  # bytes of device memory that a rank reads and writes, as far as L2 does not serve them
    sent: int  # bytes of states that a rank receives
    exchange_us: float
    us: float
    relative: float  # speed, relative to the ranks times one GPU that has all it needs in one pass
    why: str


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
    items = lines * spec.capacity
    read, written = items * spec.read_bytes, items * sum(spec.result_bytes)
    ideal = (read + written) / bandwidth
    if ranks == 1:
        why = "one rank has whole lines"
        return Sharding(method="one", ranks=1, lines=lines, moved=read + written, sent=0, exchange_us=0.0, us=ideal,
                        relative=1.0, why=why)  # fmt: skip
    row = spec.operator
    state = spec.carry.bytes * (2 if row.gated else 1) + (8 if row.indices else 0) + (1 if spec.segments else 0)
    reduced = row.name in ("sum", "prod", "max", "min", "logcumsumexp") and not (spec.mask or spec.segments)
    gates = DTYPES[spec.gate].bytes * items if spec.gate else 0  # their product
    places = 16 * items if row.indices else 0  # indices of the shard become those of the line
    first = read if reduced else read + written + gates
    again = max(0.0, read - L2) if reduced else read
    moved = int(first + again + written + places)
    exchange = all_gather(ranks, lines * state)
    us = moved / bandwidth + exchange + 2 * LAUNCH
    why = (
        f"{'a reduction' if reduced else 'a scan'} gives the state of each shard, the ranks exchange {state} bytes a "
        "line, and a scan begins with the carry from the ranks before: no rank can store an item before all "
        "before it were read, so each reads its shard twice"
    )
    return Sharding(method="twopass", ranks=ranks, lines=lines, moved=moved, sent=(ranks - 1) * lines * state,
                    exchange_us=exchange, us=us, relative=ideal / us, why=why)  # fmt: skip


def all_gather(ranks: int, size: int) -> float:
    """Return the time of NCCL's all_gather of ``size`` bytes from each rank, in us: the best of its protocols."""
    nodes = -(-ranks // NODE)
    total, inner = (ranks - 1) * size, ranks - nodes
    rows = IN_NODE if nodes == 1 else ACROSS
    return min(base + inner * near + (nodes - 1) * far + total / rate for base, near, far, rate in rows)
