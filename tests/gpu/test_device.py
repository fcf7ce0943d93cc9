"""What only a GPU can show: streams, graphs, synchronisation, memory, devices, repeated calls."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import scanops
from scanops.codegen.plan import make_plan
from scanops.errors import UnsupportedRequest
from scanops.requests.request import make_request
from scanops.runtime.kernels import default_target
from tests.numbers.oracle import CASES, Case, selection, values

pytestmark = pytest.mark.gpu

# One of each strategy; those with a row in one tile and those that loop behave alike here.
STRATEGIES = ("lanes", "wave", "column_loop", "split")
BUSY_CYCLES = 400_000_000  # some 0.2 s of a stream that does nothing


def operands(case: Case, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input and mask on the GPU, and the exact result."""
    x, mask = values("sum", case.shape, torch.float32, seed=seed), selection(case.shape, seed=seed + 1)
    expected = torch.cumsum(torch.where(mask, x, torch.zeros_like(x)), case.dim)
    return x.cuda(), mask.cuda(), expected.cuda()


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    """torch raises at whatever would wait for the GPU."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_side_stream(name: str) -> None:
    """The stream is busy when the scan is queued: a launch on any other one would read the data from before."""
    case = CASES[name]
    x, mask, expected = operands(case)
    before = torch.full_like(x, 7.0)
    scanops.cumsum(before, case.dim, mask=mask)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        scanops.cumsum(before, case.dim, mask=mask)  # the stream's own memory: an allocation may wait
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY_CYCLES)
        before.copy_(x)
        y = scanops.cumsum(before, case.dim, mask=mask)
        done = side.record_event()
    assert not done.query(), "the call waited for the stream"
    torch.cuda.current_stream().wait_event(done)
    assert torch.equal(y, expected)
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_graph_replays_on_changed_data(name: str) -> None:
    case = CASES[name]
    x, mask, expected = operands(case)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        scanops.cumsum(x, case.dim, mask=mask)
        scanops.cumsum(x, case.dim, reverse=True)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scanops.cumsum(x, case.dim, mask=mask)
        back = scanops.cumsum(x, case.dim, reverse=True)  # a second workspace, from the pool of the graph
    graph.replay()
    assert torch.equal(y, expected)
    for seed in (10, 20, 30):
        new_x, new_mask, new_expected = operands(case, seed=seed)
        x.copy_(new_x)
        mask.copy_(new_mask)
        for _ in range(3):
            graph.replay()
        assert torch.equal(y, new_expected)
        assert torch.equal(back, torch.cumsum(new_x.flip(case.dim), case.dim).flip(case.dim))


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_waits_for_the_gpu(name: str, no_synchronisation: None) -> None:
    case = CASES[name]
    x, mask, expected = operands(case)
    out = torch.empty_like(x)
    strided = torch.empty((*x.shape, 2), device="cuda")[..., 0]
    weight = torch.tensor(1.0, dtype=torch.float64, device="cuda")
    wants = x.clone().requires_grad_()

    def calls() -> list[torch.Tensor]:
        y = scanops.cumsum(wants, case.dim, mask=mask)
        y.backward(torch.ones(1, device="cuda").expand(y.shape))
        wants.grad = None
        scanops.cumsum(x, case.dim, mask=weight)
        results = [scanops.cumsum(x, case.dim, mask=mask, out=place) for place in (None, out, strided)]
        return [*results, y.detach()]

    calls()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # torch's own waits
    torch.cuda._sleep(BUSY_CYCLES)
    busy = torch.cuda.current_stream().record_event()
    results = calls()
    waited = busy.query()  # anybody's waits
    torch.cuda.set_sync_debug_mode("default")
    assert not waited
    assert all(torch.equal(result, expected) for result in results)


MEMORY = {
    "rows": Case(strategy="block", shape=(4096, 4096), dim=1),
    "short rows": Case(strategy="warp", shape=(1 << 18, 60), dim=1),
    "columns": Case(strategy="columns", shape=(16, 1024, 1024), dim=1),
    "wave": Case(strategy="wave", shape=(2, 1 << 23), dim=1),
    "split": Case(strategy="split", shape=(2, 1 << 21), dim=1),
}


@pytest.mark.parametrize("layout", ["dense", "strided"])
@pytest.mark.parametrize("name", MEMORY)
def test_a_call_takes_the_memory_of_its_result(name: str, layout: str) -> None:
    """Nor a copy of a strided input, nor of a broadcast mask. The board of a stream stays from the first call on."""
    case = MEMORY[name]
    x = torch.ones(case.shape, device="cuda")
    if layout == "strided":
        x = torch.ones((*case.shape[:-1], 2 * case.shape[-1]), device="cuda")[..., ::2]
    mask = torch.ones(case.shape[-1], dtype=torch.bool, device="cuda")
    request = make_request(x, "sum", case.dim, mask=mask, reverse=False, exclusive=False, dtype=None, out=None)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    plan = make_plan(request.spec(torch.empty(4, device="cuda"), processors), default_target())
    assert plan.strategy == case.strategy
    for _ in range(3):
        y = scanops.cumsum(x, case.dim, mask=mask)
        del y
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        asked = torch.cuda.memory_stats()["requested_bytes.all.current"]
        held = torch.cuda.memory_allocated()
        y = scanops.cumsum(x, case.dim, mask=mask)
        grew = torch.cuda.memory_stats()["requested_bytes.all.peak"] - asked
        assert grew == y.nbytes
        # The allocator hands out whole blocks, and leaves up to 1 MiB of a large one unsplit.
        assert torch.cuda.max_memory_allocated() - held <= y.nbytes + (1 << 21)
        del y


def test_another_gpu_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is visible")
    for name in STRATEGIES:
        case = CASES[name]
        x, mask, expected = operands(case)
        for _ in range(2):
            y = scanops.cumsum(x.to("cuda:1"), case.dim, mask=mask.to("cuda:1"))
            assert y.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
            assert torch.equal(y.cpu(), expected.cpu())
            assert torch.equal(scanops.cumsum(x, case.dim, mask=mask), expected)
    with pytest.raises(UnsupportedRequest):
        scanops.cumsum(x, case.dim, mask=mask.to("cuda:1"))


# ---- the second call with equal shapes takes a short way: it must look at all that may have changed


@pytest.mark.parametrize("name", CASES)
def test_a_repeated_call_reads_what_it_is_given(name: str) -> None:
    case = CASES[name]
    kept = []
    for seed in (0, 10, 20):
        x, mask, expected = operands(case, seed=seed)
        for _ in range(2):
            y = scanops.cumsum(x, case.dim, mask=mask)
            assert torch.equal(y, expected)
            kept.append((y, expected, x, mask))  # so that no address occurs twice
    assert len({y.data_ptr() for y, *_ in kept}) == len(kept)
    assert all(torch.equal(y, expected) for y, expected, *_ in kept)


def test_a_repeated_call_reads_no_environment_and_probes_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4000.0, device="cuda").view(4, 1000)
    expected = scanops.cumsum(x, 1)
    for name in ("get_device_properties", "get_device_capability", "get_device_name", "is_available", "device_count"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: pytest.fail(f"torch.cuda.{name}"))
    monkeypatch.setattr("scanops.runtime.kernels.obtain", None)
    monkeypatch.setattr("scanops.ops.dispatch.checked", None)
    monkeypatch.setattr(type(os.environ), "__getitem__", lambda _, name: pytest.fail(f"os.environ[{name!r}]"))
    result = scanops.cumsum(x, 1)
    monkeypatch.undo()
    assert torch.equal(result, expected)


@pytest.mark.parametrize("name", ["one_thread_a_row", "lanes", "one_tile", "wave", "split"])
def test_an_aligned_call_says_nothing_about_a_misaligned_one(name: str) -> None:
    case = CASES[name]
    x, mask, expected = operands(case)
    for x_offset, mask_offset in ((0, 0), (1, 0), (0, 1), (3, 5), (0, 0), (1, 0), (0, 1), (4, 16)):
        moved = torch.empty(x.numel() + 8, device="cuda")[x_offset : x_offset + x.numel()].view(x.shape).copy_(x)
        selects = torch.empty(x.numel() + 16, dtype=torch.bool, device="cuda")
        selects = selects[mask_offset : mask_offset + x.numel()].view(x.shape).copy_(mask)
        assert (moved.data_ptr() % 16 == 0) == (x_offset % 4 == 0)
        assert torch.equal(scanops.cumsum(moved, case.dim, mask=selects), expected)


def test_a_repeated_call_looks_at_every_option() -> None:
    x = torch.arange(1.0, 13.0, device="cuda").reshape(3, 4)
    cpu = x.cpu()
    mask = torch.tensor([True, False, True, True], device="cuda")
    for _ in range(2):
        for dim in (0, 1, -1):
            for op in ("sum", "prod"):
                for options in (
                    {}, {"reverse": True}, {"exclusive": True}, {"mask": mask}, {"mask": mask.float()},
                    {"dtype": torch.float64}, {"mask": mask[:1]}, {"mask": mask.expand(3, 4).contiguous()},
                ):  # fmt: skip
                    there = {name: v.cpu() if isinstance(v, torch.Tensor) else v for name, v in options.items()}
                    y = scanops.scan(x, op, dim, **options)  # type: ignore[arg-type]
                    assert torch.equal(y.cpu(), scanops.scan(cpu, op, dim, **there))  # type: ignore[arg-type]
        turned = x.t().contiguous().t()  # the same shape, other strides
        assert torch.equal(scanops.cumsum(turned, 1), torch.cumsum(x, 1))
        assert torch.equal(scanops.cumsum(x.int(), 1), torch.cumsum(x.int(), 1))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"reverse": True}, {"reverse": 1}),
        ({"exclusive": False}, {"exclusive": 0}),
        ({"exclusive": False}, {"exclusive": 0.0}),
        ({"dim": 1}, {"dim": True}),
        ({"dim": 1}, {"dim": 1.0}),
        ({"dtype": torch.float32}, {"dtype": "torch.float32"}),
    ],
    ids=str,
)
def test_an_equal_value_of_another_type_is_refused_each_time(good: dict[str, object], bad: dict[str, object]) -> None:
    x = torch.ones(3, 4, device="cuda")
    for _ in range(2):
        scanops.cumsum(x, **{"dim": 1, **good})  # type: ignore[arg-type]
        with pytest.raises(UnsupportedRequest):
            scanops.cumsum(x, **{"dim": 1, **bad})  # type: ignore[arg-type]


def test_a_gradient_wanted_after_a_call_without_one() -> None:
    x = torch.ones(3, 4, device="cuda")
    for _ in range(2):
        assert not scanops.cumsum(x, 1).requires_grad
        y = scanops.cumsum(x.clone().requires_grad_(), 1)
        assert y.requires_grad
        with torch.no_grad():
            assert not scanops.cumsum(x.clone().requires_grad_(), 1).requires_grad
