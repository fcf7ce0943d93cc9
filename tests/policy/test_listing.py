"""``scanops.calls``: which kernel served each scan of a block, where it was found, and why where none did."""

from __future__ import annotations

import logging

import pytest
import torch

import scanops
from scanops.runtime import kernels, policies
from tests.policy.conftest import SPEC, X, Y

NAME = SPEC.slug
PARTS = X[:, :60].contiguous().requires_grad_()


def again() -> None:
    """Scan once more in a process that holds no kernel."""
    kernels._KERNELS.clear()
    scanops.cumsum(X, 1)


# What runs inside the block, the policy, and (kernel, builder, found) of each scan.
CASES = {
    "memory": (lambda: [scanops.cumsum(X, 1) for _ in range(3)], "build", [(NAME, "cpu", "memory")] * 3),
    "store": (again, "build", [(NAME, "cpu", "store")]),
    "built": (
        lambda: scanops.cumprod(X, 1),
        "build",
        [(NAME.replace("sum", "prod"), "cpu", "built")],
    ),
    "backward": (
        lambda: scanops.cumsum(PARTS, 1).sum().backward(),
        "build",
        [("sum-f32-n60", "cpu", "built"), ("sum-f32-n60-reverse-strided", "cpu", "built")],
    ),
    "generic": (lambda: scanops.cumsum(PARTS.detach(), 1), "generic", [("sum-f32-any-le128-by4", "cpu", "built")]),
    "fallback": (lambda: scanops.cumsum(PARTS.detach(), 1), "fallback", [(None, None, "fallback")]),
    "fused": (lambda: scanops.scan((X, X), "sum", 1, map=torch.mul), "build", [("sum-f32-n100-map_", "cpu", "built")]),
    "compiled": (
        lambda: torch.compile(lambda x: scanops.cumsum(x, 1), backend="aot_eager", fullgraph=True)(X),
        "build",
        [(NAME, "cpu", "memory")],
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_each_scan_is_listed_with_what_served_it(case: str) -> None:
    run, policy, expected = CASES[case]
    with scanops.emulate(), scanops.policy(policy):
        scanops.prepare([SPEC])
        torch.testing.assert_close(scanops.cumsum(X, 1), Y)
        scanops.cumsum(X, 1)  # which C++ may serve from now on
        with scanops.calls() as made:
            run()
        scanops.cumsum(X, 1)
    assert len(made) == len(expected)
    strategies = [(each.function or "").rpartition("_")[2] for each in made]  # which ends the name of a kernel
    origins = {"staged": "rule: staged", "warp": "rule: warp", "": ""}
    assert [each.origin for each in made] == [origins[each] for each in strategies]
    for call, (kernel, builder, found) in zip(made, expected, strict=True):
        assert (call.builder, call.found, call.target) == (builder, found, "cpu")
        assert call.kernel == kernel or (kernel and call.kernel.startswith(kernel))
        assert call.hit == (found in ("memory", "store")) and call.seconds >= 0
        assert kernel is None or (call.function.startswith(kernel.replace("-", "_")) and call.function in str(call))
        assert (call.reason == "") == (kernel is not None) and call.request in str(call)


def test_a_listing_says_why_pytorch_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    with scanops.calls() as made, pytest.warns(RuntimeWarning, match="no kernel"):
        scanops.cumsum(X, 1)
        with scanops.emulate(), scanops.policy("fallback"):
            scanops.cumsum(X, 1)
        with pytest.raises(scanops.errors.MissingKernel), scanops.emulate(), scanops.policy("never"):
            scanops.cumprod(X, 1)  # raises and is not listed
    assert [str(call) for call in made] == [
        "cumsum of torch.float32 [3, 100] on cpu: PyTorch's operators, a CPU tensor outside of scanops.emulate()",
        f"{NAME} on cpu: PyTorch's operators, not in the store under the policy fallback",
    ]


def test_each_miss_and_each_fallback_is_a_line_of_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_said", policies.deque(maxlen=policies._MOST))
    caplog.set_level(logging.INFO, "scanops")
    with scanops.emulate(), pytest.warns(RuntimeWarning):
        for policy in ("fallback", "generic", "build"):
            with scanops.policy(policy):
                scanops.cumsum(X, 1)
                scanops.cumsum(X, 1)
    generic = "sum-f32-any-le128-by4"
    expected = (
        f"fallback: PyTorch's operators compute {NAME} for cpu",
        *(f"building {generic} for cpu", f"built {generic} for cpu in"),
        *(f"miss: {NAME} for cpu; {generic} serves", f"building {NAME} for cpu", f"built {NAME} for cpu in"),
    )
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line, begin in zip(lines, expected, strict=True) if not line.startswith(begin)] == []
    caplog.clear()
    for _ in range(3 * policies._MOST):
        policies.say("a line")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == policies._MOST - 2 and lines[-1].endswith("further lines of this minute are left out")
