"""KernelBench's static rules, as its kernel_static_checker publishes them, for CUDA at fp32: written anew."""

from __future__ import annotations

import re

__all__ = ["broken"]

# name -> patterns of which a text may have none. The first four are errors there, the others warnings.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "a way round": (r"\btry\s*:", r"\bexcept\s*:", r"\bexcept\s+\w+", r"\bpass\b"),
    "patched timing": (
        r"torch\.cuda\.Event(\.record|\.elapsed_time)?\s*=",
        r"torch\.cuda\.synchronize\s*=",
        r"time\.(perf_counter|time)\s*=",
    ),
    "threads": (r"\b(import|from)\s+(threading|multiprocessing)", r"concurrent\.futures", r"PoolExecutor"),
    "lazy tensors": (r"_make_subclass", r"class\s+\w+.*\((torch\.)?Tensor\)", r"torch\.Tensor\.__new__"),
    "layers of torch": (r"torch\.nn\.(?!(Module|[pP]arameter|(Parameter|Module)(List|Dict)|init)\b)",),
    # Beyond its list: every operation that could do the work of a scan.
    "operations of torch": (
        r"\btorch\.(mm|bmm|matmul|einsum|conv\w*|relu|softmax|sigmoid|tanh|logsumexp|clamp|dropout|\w+_norm|\w+_loss)\b",
        r"\b(torch|x|y|mask|tensor)\.(cumsum|cumprod|cummax|cummin|logcumsumexp|flip|cat|sum|prod|mul|where)\b",
        r"\b(torch\.nn|nn)\.functional\b",
        r"\bF\.\w+\(",
    ),
    "streams": (r"cuda\.Stream\s*\(", r"with\s+torch\.cuda\.stream", r"\.(wait|record)_stream\s*\("),
    "less precision": (r"__float2half", r"\(\s*__half\s*\)", r"_cast\s*<\s*(__)?half\s*>", r"\.(half|float16)\s*\("),
}  # fmt: skip
NEEDED = (r"__global__", r"load_inline|cpp_extension", r"\b(threadIdx|blockIdx|blockDim|gridDim)\.|__device__\s")


def broken(text: str) -> list[str]:
    """What a file breaks: the name of a rule and the words that break it."""
    # Its notion of a comment: a line up to the first # or //, wherever that stands.
    code = "\n".join(line.split("#")[0].split("//")[0] for line in text.split("\n"))
    found = [
        f"{name}: {match[0]}"
        for name, rules in FORBIDDEN.items()
        for rule in rules
        for match in re.finditer(rule, code)
    ]
    return found + [f"nothing like {rule}" for rule in NEEDED if not re.search(rule, code)]
