"""What errors say: names that the user wrote, each value once, and next steps that help."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import scanops
from scanops.errors import ScanopsError

X, META = torch.ones(2, 3), torch.ones(2, 3, device="meta")
MESSAGES: dict[str, tuple[Callable[[], object], str, str]] = {  # the call, its first line, and its next step
    "a name in another sense": (
        lambda: scanops.scan(X, "sum", 1, map=lambda a: a.argsort()),
        "argsort is not supported",
        "compute it before the call",
    ),
    "a misspelled function": (
        lambda: scanops.scan(X, "sum", 1, map=lambda a: a.sigmiod()),
        "sigmiod is not supported",
        "did you mean 'sigmoid'?",
    ),
    "an operand of linear_scan": (
        lambda: scanops.linear_scan(META, X, 1),
        "linear_scan: a must be on b's device: got a.device=meta",
        "move it: a.to('cpu')",
    ),
    "None": (lambda: scanops.cumsum(None, 0), "x must be a tensor: got x=None", "pass a tensor as x"),  # type: ignore[call-overload]
    "a list": (lambda: scanops.cumsum([1.0], 0), "x must be a tensor: got x=[1.0]", "torch.as_tensor(x)"),  # type: ignore[call-overload]
    "a carry-in with dim": (
        lambda: scanops.cumsum(X, 1, initial=X[:, :1]),
        "initial.shape=(2, 1)",
        "pass initial.squeeze(1)",
    ),
    "a carry-in of another shape": (
        lambda: scanops.cumsum(X, 1, initial=X),
        "initial.shape=(2, 3)",
        "expand or reshape initial",
    ),
    "no items": (
        lambda: scanops.ScanSpec(op="sum", dtype="float32", length=-4),
        "length must be an integer from 1",
        "pass length=1 or more",
    ),
    "too many items": (
        lambda: scanops.ScanSpec(op="sum", dtype="float32", length=2**40),
        "length must be an integer from 1",
        "split the tensor",
    ),
    "a policy": (lambda: scanops.policy("nevr").__enter__(), "no such policy: got 'nevr'", "did you mean 'never'?"),
    "out and gradients": (
        lambda: scanops.cumsum(X.clone().requires_grad_(), 1, out=torch.empty(2, 3)),
        "out= takes no tensors that require gradients",
        "omit out, or call it",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message(name: str) -> None:
    call, first, following = MESSAGES[name]
    with pytest.raises(ScanopsError) as caught:
        call()
    lines = str(caught.value).splitlines()
    assert first in lines[0] and re.search(r"\n  next: .*" + re.escape(following), str(caught.value))
    assert ("did you mean" in caught.value.hint) == ("did you mean" in following)
    value = str(caught.value.value)
    assert lines[0].count(value) == 1, "the value is said twice"


def test_a_missing_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """The policy that forbids a build is named; with packs the kernel is to be added to one of them."""
    monkeypatch.setenv("SCANOPS_PACKS", str(tmp_path))
    with scanops.emulate(), scanops.policy("never"), pytest.raises(scanops.errors.MissingKernel) as caught:
        scanops.cumsum(torch.ones(2, 1237), 1)
    assert str(caught.value).splitlines()[0].endswith("under the policy never: got policy 'never'")
    assert caught.value.hint.startswith("add it to the pack") and "scanops build sum-f32-n1237" in caught.value.hint
