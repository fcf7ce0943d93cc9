"""Cox partial likelihood with censoring and ties: python examples/survival.py.

Patient i has a log hazard eta[i] and a time t[i], at which there is an event or not (censored). The negative logarithm
of the partial likelihood is the sum over events of log(sum of exp(eta[j]) over all j with t[j] >= t[i]) - eta[i]. With
patients sorted by time, these logarithms are a reverse logcumsumexp; patients with the same time (ties, Breslow's
method) take the value of the first of them. Today's code flips the tensor, scans it and flips it back, forward and
backward. By definition it takes a matrix of all pairs, against which the first patients are checked.

Sources: Cox, "Regression Models and Life-Tables" (1972); Breslow, "Covariance Analysis of Censored Survival Data"
(1974).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

import scanops
from beside import DEVICE, Beside, beside, told

MODELS, PATIENTS = (16, 262144) if DEVICE == "cuda" else (4, 2000)
CHECKED = 500  # patients whose likelihood is computed by definition

Scan = Callable[[torch.Tensor], torch.Tensor]


def scan_today(eta: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum over each patient and all later ones."""
    return torch.logcumsumexp(eta.flip(1), 1).flip(1)


def scan_by_kernel(eta: torch.Tensor) -> torch.Tensor:
    """The same by one kernel, whose gradient is one kernel as well."""
    return scanops.logcumsumexp(eta, 1, reverse=True)


def loss(eta: torch.Tensor, time: torch.Tensor, event: torch.Tensor, scan: Scan) -> torch.Tensor:
    """The negative log partial likelihood of each model, for an event; patients are sorted by time."""
    first = torch.searchsorted(time, time)  # of the patients with the same time
    at_risk = scan(eta)[:, first]
    return ((at_risk - eta) * event).sum(1) / event.sum()


def by_definition(eta: torch.Tensor, time: torch.Tensor, event: torch.Tensor) -> torch.Tensor:
    """The same from a matrix of all pairs of patients, in float64."""
    later = torch.where(time[None, :] >= time[:, None], 0.0, -torch.inf).double()
    at_risk = (eta.double()[:, None, :] + later).logsumexp(2)
    return ((at_risk - eta) * event).sum(1) / event.sum()


def compare() -> list[Beside]:
    """The loss and its gradient in both ways, and both against the definition for some patients."""
    generator = torch.Generator().manual_seed(0)
    eta = torch.randn(MODELS, PATIENTS, generator=generator).to(DEVICE).requires_grad_()
    time = torch.randint(PATIENTS // 4, (PATIENTS,), generator=generator).sort().values.to(DEVICE)  # days: many ties
    event = (torch.rand(PATIENTS, generator=generator) < 0.7).to(DEVICE)  # the others are censored
    few = tuple(each[..., :CHECKED].detach() for each in (eta, time, event))

    def trained(scan: Scan) -> tuple[torch.Tensor, ...]:
        found = loss(eta, time, event, scan)
        return found.detach(), *torch.autograd.grad(found.sum(), eta)

    def defined() -> tuple[torch.Tensor, ...]:
        return (by_definition(*few),)

    return [
        beside(f"by definition, {CHECKED} patients", defined, lambda: (loss(*few, scan_by_kernel).double(),)),
        beside(
            f"loss and gradient, {MODELS} models of {PATIENTS} patients on {DEVICE}",
            lambda: trained(scan_today),
            lambda: trained(scan_by_kernel),
        ),
    ]


if __name__ == "__main__":
    sys.exit(told(compare()))
