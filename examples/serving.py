"""A server without compilers: a read-only pack, and numbers of hits and misses: python examples/serving.py.

The first process stands for the build machine: it records what the model asks for and precompiles that into a pack. The
second stands for the container: no PATH, a pack that nothing may write, and the policy ``never``, so that no request
waits for a compiler. A request of an unseen shape is served at once all the same: by NVRTC on a GPU, which PyTorch
brings, and by PyTorch's operators on a CPU. Without a GPU the kernels are emulated.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

import scanops
from scanops.errors import MissingKernel

LENGTHS = (128, 256, 512)  # that the server is prepared for
REQUESTS = (128, 512, 256, 300, 128, 300, 512)
GPU = torch.cuda.is_available()
UNSEEN = "build" if GPU else "fallback"  # the policy of requests that the pack has no kernel for


def model(logits: torch.Tensor) -> torch.Tensor:
    """Top-p sampling: tokens that the most probable ones, of 0.9 of the probability, hold; one of them is drawn."""
    probabilities, tokens = logits.softmax(1).sort(1, descending=True)
    before = scanops.cumsum(probabilities, 1, exclusive=True)  # the probability of all that are more likely
    kept = probabilities.masked_fill(before >= 0.9, 0.0)
    chosen = torch.multinomial(kept, 1, generator=torch.Generator(logits.device).manual_seed(0))
    return tokens.gather(1, chosen)


def emulated() -> contextlib.AbstractContextManager[object]:
    """Kernels on the GPU, or emulated ones where there is none."""
    return contextlib.nullcontext() if GPU else scanops.emulate()


def logits_of(length: int) -> torch.Tensor:
    """The logits of a request."""
    return torch.randn(4, length, generator=torch.Generator().manual_seed(length)).to("cuda" if GPU else "cpu")


def build(folder: Path) -> Path:
    """Record the model on every length, and return the pack of its kernels."""
    with scanops.record() as used, emulated():
        for length in LENGTHS:
            model(logits_of(length))
    used.write(folder / "specs.toml")
    arguments = ("precompile", folder / "specs.toml", "-o", folder / "pack")
    subprocess.run([sys.executable, "-m", "scanops", *arguments], check=True, stdout=subprocess.DEVNULL)
    for path in (folder / "pack").rglob("*"):
        path.chmod(path.stat().st_mode & ~0o222)
    return folder / "pack"


def serve() -> None:
    """Answer the requests and print what served them."""
    found: Counter[str] = Counter()
    for length in REQUESTS:
        logits = logits_of(length)
        with emulated(), scanops.calls() as made:  # left out in production once the numbers are right
            try:
                tokens = model(logits)
            except MissingKernel:
                found["not in the pack"] += 1
                with scanops.policy(UNSEEN):
                    tokens = model(logits)
        assert tokens.shape == (4, 1) and bool((tokens < length).all())
        found.update("hit" if call.hit else call.found for call in made)
        print(f"{length:5} tokens: {made[-1]}")
    print(", ".join(f"{count} {name}" for name, count in sorted(found.items())))


def main() -> int:
    """Build, then serve in a process that can build no library; return its exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = {"PATH": "", "SCANOPS_POLICY": "never", "SCANOPS_BUILDER": "nvrtc", "SCANOPS_NATIVE": "0"}
        bare |= {"SCANOPS_PACKS": str(build(folder)), "SCANOPS_STORE": str(folder / "memory"), "HOME": str(folder)}
        return subprocess.run([sys.executable, __file__, "serve"], env={**os.environ, **bare}, check=False).returncode


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["serve"] else main())
