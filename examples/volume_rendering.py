"""Colours of rays through a radiance field (NeRF): python examples/volume_rendering.py.

Sample i of a ray has the density sigma[i] over a distance delta[i], and so the opacity
alpha[i] = 1 - exp(-sigma[i] delta[i]). The light that reaches it is the transmittance
T[i] = (1 - alpha[0]) ... (1 - alpha[i-1]), an exclusive product; its weight in the colour of the ray is T[i] alpha[i].
Today's code makes tensors of alpha, of 1 - alpha behind a leading 1, and of their products. Here one kernel reads
densities and distances and writes the weights, and the gradient is fused as well.

Source: Mildenhall et al., "NeRF: Representing Scenes as Neural Radiance Fields for View Synthesis" (2020).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

import scanops
from beside import DEVICE, Beside, beside, told

RAYS, SAMPLES = (65536, 192) if DEVICE == "cuda" else (256, 64)

Way = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def weights_today(density: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """The weights of samples as NeRF implementations compute them."""
    alpha = 1 - torch.exp(-density * distance)
    ones = torch.ones_like(alpha[:, :1])
    return alpha * torch.cumprod(torch.cat([ones, 1 - alpha], 1), 1)[:, :-1]


def weights_by_scan(density: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """The same by one kernel."""
    found: torch.Tensor = scanops.scan(
        (density, distance),
        "prod",
        1,
        exclusive=True,
        map=lambda density, distance: torch.exp(-density * distance),
        then=lambda transmittance, density, distance: transmittance * (1 - torch.exp(-density * distance)),
    )
    return found


def colours(weights: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """The colour of each ray, the weighted sum over its samples."""
    return torch.einsum("rs,rsc->rc", weights, samples)


def compare() -> list[Beside]:
    """Render rays, and train densities by the error of their colours, in both ways."""
    generator = torch.Generator().manual_seed(0)
    density = torch.rand(RAYS, SAMPLES, generator=generator).mul(4).to(DEVICE).requires_grad_()
    distance = torch.rand(RAYS, SAMPLES, generator=generator).div(SAMPLES).add(1e-3).to(DEVICE)
    samples = torch.rand(RAYS, SAMPLES, 3, generator=generator).to(DEVICE)
    seen = torch.rand(RAYS, 3, generator=generator).to(DEVICE)

    def rendered(way: Way) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            weights = way(density, distance)
            return weights, colours(weights, samples)

    def trained(way: Way) -> tuple[torch.Tensor, ...]:
        loss = (colours(way(density, distance), samples) - seen).square().sum()
        return (loss.detach(), *torch.autograd.grad(loss, density))

    size = f"{RAYS} rays of {SAMPLES} samples on {DEVICE}"
    return [
        beside(f"rendering, {size}", lambda: rendered(weights_today), lambda: rendered(weights_by_scan)),
        beside(f"rendering and gradient, {size}", lambda: trained(weights_today), lambda: trained(weights_by_scan)),
    ]


if __name__ == "__main__":
    sys.exit(told(compare()))
