"""Kernels ahead: from specs, short names and calls."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.serving import misses
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

SPEC = ScanSpec(op="sum", dtype="float32", length=100)
X = torch.ones(3, 60)


def test_specs_short_names_and_calls() -> None:
    with scanops.emulate():
        kernels = scanops.prepare([SPEC, SPEC.slug, "prod-f32-n64", lambda: scanops.cumsum(X, 1, reverse=True)])
        assert [kernel.spec.slug for kernel in kernels] == [SPEC.slug, "prod-f32-n64", "sum-f32-n60-reverse"]
        assert all(misses.has(kernel.spec, kernel.target) for kernel in kernels)
        with scanops.policy("never"):
            assert torch.equal(scanops.cumsum(torch.ones(3, 100), 1)[0], torch.arange(1, 101.0))


def test_it_builds_under_every_policy_but_never() -> None:
    with scanops.policy("fallback"), scanops.emulate():
        (kernel,) = scanops.prepare([lambda: scanops.cumsum(X, 1)])
        assert kernel.spec.slug == "sum-f32-n60"


def test_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = scanops.prepare("sum-f32-n64", "cpu")
    assert (kernel.spec.slug, kernel.target) == ("sum-f32-n64", "cpu")
    with pytest.raises(UnsupportedRequest, match="sm_12"):
        scanops.prepare([SPEC], ["sm_12"])


@pytest.mark.parametrize("what", [lambda: scanops.cumsum(X, 1), 3, "no-such-spec"])
def test_what_cannot_be_prepared(what: object) -> None:
    with pytest.raises(UnsupportedRequest):
        scanops.prepare([what])  # type: ignore[list-item]
