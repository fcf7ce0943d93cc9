"""Method ``onepass``: emulated kernels of three processes, and which calls it is chosen for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scanops.distributed import method_costs, shards
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from tests.distributed import onepass_jobs as jobs
from tests.distributed.onepass_jobs import HALVES, Case
from tests.distributed.processes import Ranks

TURNED = ("reverse", "exclusive")
CASES = [
    Case("sum"),
    Case("sum", "uneven", options=TURNED),
    Case("sum", "long", 8, dtype=HALVES, options=("reverse",)),
    Case("sum", operands=("mask", "segment_starts"), options=TURNED),
    Case("sum", "uneven", operands=("weights",)),
    Case("sum", inner=8, operands=("segment_starts",)),
    Case("sum", initial="lines", final=True),
    Case("sum", "uneven", initial="one", final=True, options=("reverse",), wants="initial"),
    Case("sum", initial="number", final=True, order=2),
    Case("prod"),
    Case("prod", "uneven", operands=("mask",), options=TURNED),
    Case("prod", operands=("weights",)),
    Case("prod", operands=("segment_starts",), options=("reverse",)),
    Case("prod", initial="lines", final=True, options=("exclusive",)),
    Case("linear"),
    Case("linear", "long", options=TURNED),
    Case("linear", "uneven", 8, options=("exclusive",)),
    Case("linear", operands=("mask",), order=2),
    Case("linear", operands=("weights", "number"), options=("reverse",)),
    Case("linear", "uneven", operands=("mask", "segment_starts"), options=TURNED),
    Case("linear", operands=("segment_starts",), inner=8, options=("reverse",)),
    Case("linear", operands=("channels",), inner=8),
    Case("linear", "long", operands=("channels",), inner=8, options=TURNED),
    Case("linear", initial="lines", final=True, options=TURNED, order=2),
    Case("linear", "uneven", 8, initial="one", final=True),
    Case("linear", initial="number"),
    Case("linear", "single", initial="lines", wants="initial", final=True),
    Case("linear", rematerialized=True),
    Case("max", "uneven", operands=("weights",)),
    Case("max", inner=8, initial="lines", final=True, options=("exclusive",)),
    Case("max", operands=("segment_starts",), options=("reverse",)),
    Case("min", operands=("mask",), options=TURNED),
    Case("min", "uneven", initial="lines", final=True, wants="initial", options=("reverse",)),
    Case("logcumsumexp", "long"),
    Case("logcumsumexp", "uneven", operands=("mask",), options=TURNED),
    Case("logcumsumexp", operands=("segment_starts",)),
]
SERVED = [
    Case("sum", wants="nothing"),
    Case("max", final=True, options=TURNED, wants="nothing"),
    Case("sum", options=TURNED),
    Case("sum", operands=("segment_starts",)),
    Case("sum", initial="lines", final=True),
    Case("prod", final=True),
    Case("linear", initial="lines", wants="nothing"),
    Case("linear", inner=8, options=TURNED),
    Case("linear", initial="lines", final=True, options=TURNED),
    Case("linear", initial="lines", final=True, wants="initial"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(filter(None, map(str, case[:8]))))
def test_values_and_gradients(ranks: Ranks, case: Case) -> None:
    ranks.run(jobs.compare, case)


@pytest.mark.parametrize("case", SERVED, ids=lambda case: "-".join(filter(None, map(str, case[:8]))))
def test_calls_that_cpp_serves(ranks: Ranks, case: Case) -> None:
    ranks.run(jobs.compare_served, case)


@pytest.mark.parametrize(
    "job",
    [
        jobs.derivatives_of_served_calls,
        jobs.other_calls,
        jobs.carries_that_results_round,
        jobs.launches_that_are_counted_elsewhere,
        jobs.memory_that_grows,
        jobs.notes_of_many_calls,
        jobs.equal_errors,
        jobs.errors_of_one_rank,
        jobs.a_backward_pass_without_kernels,
        jobs.a_rank_without_its_kernel,
    ],
    ids=lambda job: job.__name__,
)
def test_of_ranks(ranks: Ranks, job: object) -> None:
    ranks.run(job)  # type: ignore[arg-type]


@pytest.mark.parametrize("job", [jobs.memory_that_cannot_be_shared, jobs.files_of_others], ids=lambda job: job.__name__)
def test_words_that_ranks_share(ranks: Ranks, tmp_path: Path, job: object) -> None:
    ranks.run(job, str(tmp_path))  # type: ignore[arg-type]


DIFFERENCES = [(a, b) for a in ("sum", "backward") for b in jobs.DIFFERENT if a != b]


@pytest.mark.parametrize(("usual", "other", "trial"), [(*each, k) for k, each in enumerate(DIFFERENCES)])
def test_calls_that_differ(ranks: Ranks, usual: str, other: str, trial: int) -> None:
    ranks.run(jobs.calls_that_differ, usual, other, trial)


@pytest.mark.parametrize(("times", "is_backward"), [(1, False), (4, False), (4, True)])
def test_a_rank_that_is_late(ranks: Ranks, times: int, is_backward: bool) -> None:
    ranks.run(jobs.a_rank_that_is_late, times, is_backward)


@pytest.mark.parametrize(
    ("shape", "dim", "count", "wanted"),
    [
        ((6, 10**6), 1, 4, "onepass"),  # as many rows as make it no slower than two passes
        ((5, 10**6), 1, 4, "twopass"),
        ((2**20,), 0, 2, "twopass"),
        ((8, 500, 4096), 1, 4, "onepass"),  # 64 fronts of 8 tiles of 64 columns
        ((1, 500, 2048), 1, 4, "twopass"),
        ((1, 500, 2048), 1, 2, "onepass"),
        ((4, 500, 0), 1, 2, "twopass"),  # no lines
    ],
)
def test_the_method_is_that_of_fewer_bytes(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dim: int, count: int, wanted: str
) -> None:
    """The choice depends on nothing that differs between ranks, such as the length of a shard."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for length in (1, 100):
        cut = [length if d == dim else size for d, size in enumerate(shape)]
        x = torch.empty(cut, device="meta")
        shard = shards.shard_of(Call("sum", dim), Inputs(x), None)
        assert method_costs.choose_method("auto", shard, count, 1, recorded=False) == wanted
        assert method_costs.choose_method("twopass", shard, count, 1, recorded=False) == "twopass"
