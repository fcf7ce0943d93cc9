"""``python -m benchmarks COMMAND ...``: run one measurement."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from scanops.errors import ScanopsError, UnsupportedRequest

COMMANDS = {
    "grid": "float32 sums and products of every shape against a copy, torch, torch.compile, Triton and CUB",
    "report": "measure this GPU in a minute and write one HTML page about it",
    "variants": "other operators, gates, segments, carries and dtypes against a copy",
    "bounds": "what bounds each of the variants that is slower than a copy: hardware counters",
    "workloads": "scans of twenty real programs against the code that their users run today",
    "uses": "what each page of docs/uses opens with beside the code that it replaces: time and peak memory",
    "patched": "unmodified programs with and without patch_torch: results, host times, steps",
    "drop_ins": "functions of scanops.compat beside the formulas they replace, and the originals where installed",
    "peers": "kernels of fla, accelerated-scan, mamba_ssm, cuda.compute, torch.compile beside scans like them",
    "fusion": "scans with map and then against the same expressions around torch's scans, eager and compiled",
    "plans": "search the fastest plans on this GPU and write the table that the planner reads",
    "gradients": "forward and backward passes: time in copies, peak memory",
    "training": "forward and backward passes against a copy of the least bytes, and what training uses today",
    "states": "selective scans beside mamba_ssm: forward, forward and backward, peak of memory",
    "random": "random calls as users make them, forward and with gradients, against a copy: percentiles of each class",
    "forward": "forward scans of real workloads against a copy: resets, packed sequences, half types, small inputs",
    "calls": "CPU time of a repeated call, library, cubin and Python, with and without gradient, against torch",
    "cubins": "cubins of NVRTC beside libraries: speed and bits",
    "store": "first calls, in a running process and in new ones; look-up and load from disk",
    "stress": "the store under 64 processes and 500 kills",
    "builds": "text, machine code, registers, spills and compile time of kernels",
    "instructions": "instructions per item of compiled kernels, by pipe",
    "accuracy": "error against float64, scanops and torch on the same data; writes docs/accuracy.md",
    "soak": "ten thousand repeats of each look-back kernel beside a busy GPU: same bits, no hang",
    "distributed": "sharded scans on GPUs: every method beside one GPU and plain PyTorch",
    "pack": "bytes of packs of one kernel for eight targets",
    "readme": "write the benchmark tables of README and docs from the committed results",
}
MODULES = {"peers": "peers.published"}  # where the module is not named like the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` name and return its exit status.

    0: done; 1: failed or a figure is out of bounds; 2: the request is wrong. Raises ScanopsError for the last two
    where the reason is a missing requirement or an unsupported request.
    """
    name, *rest = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    if name not in COMMANDS:
        rows = "\n".join(f"  {name:<18}{words}" for name, words in COMMANDS.items())
        print(f"usage: python -m benchmarks COMMAND [--help] ...\n\n{rows}")
        return 0 if name in ("-h", "--help") else 2
    return int(importlib.import_module(f"benchmarks.{MODULES.get(name, name)}").main(rest) or 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ScanopsError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2 if isinstance(problem, UnsupportedRequest) else 1)
