"""What exported files say: names that old versions of torch have, the rules of those who load them, typed errors."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops.build_request import BuildRequest
from scanops.codegen.abi import ABI
from scanops.codegen.exports.formats import FORMATS, export
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.store import Store
from tests.scripts import ran
from tools.golden import GOLDEN

# What torch 2.8 has of all that a file may name. In Python: load_inline with these arguments is the youngest.
TORCH = {
    "torch.__version__",
    "torch.empty_like",
    "torch.full",
    "torch.nn.Module",
    "torch.cuda.get_device_capability",
    "torch.cuda.is_available",
    "torch.bool",
    "torch.int8",
    "torch.int16",
    "torch.int32",
    "torch.int64",
    "torch.uint8",
    "torch.float16",
    "torch.bfloat16",
    "torch.float32",
    "torch.float64",
    "torch.complex64",
    "torch.complex128",
}
LOAD_INLINE = {
    "name",
    "cpp_sources",
    "cuda_sources",
    "functions",
    "extra_cflags",
    "extra_cuda_cflags",
    "no_implicit_headers",
}
MODULES = {"functools", "hashlib", "sys", "torch", "torch.utils.cpp_extension"}

# KernelBench's static rules for CUDA at fp32, as its kernel_static_checker publishes them: patterns that a file may
# not have besides names that TORCH and MODULES leave out, and patterns that it needs.
FORBIDDEN = (
    *(r"\btry\s*:", r"\bexcept\s*:", r"\bexcept\s+\w+", r"\bpass\b", r"\bF\.\w+\("),
    *(r"_make_subclass", r"class\s+\w+.*\((torch\.)?Tensor\)", r"\.(wait|record)_stream\s*\("),
    *(r"__float2half", r"\(\s*__half\s*\)", r"_cast\s*<\s*(__)?half\s*>", r"\.(half|float16)\s*\("),
)
NEEDED = (r"__global__", r"load_inline|cpp_extension", r"\b(threadIdx|blockIdx|blockDim|gridDim)\.|__device__\s")


def broken(text: str) -> list[str]:
    """What a file breaks: the words that match a forbidden pattern, and the patterns that it lacks."""
    # KernelBench's notion of a comment: from the first # or // of a line, wherever that stands.
    code = "\n".join(line.split("#")[0].split("//")[0] for line in text.split("\n"))
    found = [match[0] for rule in FORBIDDEN for match in re.finditer(rule, code)]
    return found + [rule for rule in NEEDED if not re.search(rule, code)]


def names_of_torch(tree: ast.AST) -> set[str]:
    """Every dotted name that begins with torch, at its longest."""
    dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = {name for name in dotted if re.fullmatch(r"torch(\.\w+)+", name)}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


@pytest.mark.parametrize("format", ["modelnew", "kernelbench", "gpumode"])
def test_what_files_name(format: str) -> None:
    """The five problems and every golden of a format: names of torch 2.8, and the rules of who loads the files."""
    count = 0
    for slugs in [*PROBLEMS.values(), *((row.slug,) for row in GOLDEN)]:
        try:
            text = parsed(slugs, format)
        except UnsupportedRequest:
            continue
        count += 1
        tree = ast.parse(text, feature_version=(3, 7))
        nodes = list(ast.walk(tree))
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert imported <= MODULES, slugs
        assert "torch.__version__" in names_of_torch(tree) <= TORCH, slugs
        host = text.partition('HOST = r"""')[2].partition('"""')[0]
        (call,) = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_inline")
        assert {keyword.arg for keyword in call.keywords if keyword.arg} | {"name"} == LOAD_INLINE
        body = text.partition("KERNEL_1 =")[0]
        assert "Needs torch 2.8 or later, CUDA 11.8 or later" in body
        assert "scanops" not in re.sub(r"scanops_\w+|scanops export [^\n]*", "", body), slugs
        assert text.count("#include <cuda_runtime.h>\n\nnamespace kernel_") == len(texts(text)), slugs
        assert text.count("#include") == host.count("#include") + 2 * len(texts(text)), slugs
        if format == "kernelbench":
            assert broken(text) == [], slugs
        if format == "gpumode":  # whose server refuses every text with this word, in any case, wherever it stands
            assert "stream" not in text.lower() and "def custom_kernel(data):" in text
    assert count > {"modelnew": len(GOLDEN), "kernelbench": 15, "gpumode": 6}[format]


def test_kernelbench_masks_and_rules() -> None:
    """The rules find what they forbid: a test that looks for nothing would pass."""
    masked = parsed(PROBLEMS["masked_cumsum"], "kernelbench")
    assert all(re.search(rf"== at::k{name}\s+\? Kernel", masked) for name in ("Bool", "Float"))
    for bad in ("    try:", "z = x.half()", "class T(torch.Tensor):"):
        assert broken(f"{masked}\n{bad}\n"), bad
    assert len(broken("import torch")) == 3


@pytest.mark.parametrize(
    ("slugs", "format", "allowed"),
    [
        ("sum-f32-n9-exclusive-complete-rows", "modelnew", "as many results as items"),
        ("sum-f32-n9-offsets_i32-final-per_segment", "cu", "no carries of segments"),
        ("sum-f32-any-inner4-ragged_i32", "cu", "no chunks of segments"),
        ("sum-f32-n4096-linked", "modelnew", "lines of one GPU"),
        ("sum-f32-n8 sum-f32-n9", "cu", "one spec: every kernel has a launcher"),
        ("sum-f32-n8 prod-f32-n8", "modelnew", "specs that differ in length"),
        ("sum-f32-n8", "pdf", "modelnew, cu, kernelbench, gpumode"),
        ("", "modelnew", "one spec or more"),
        ("sum-i64-n8", "kernelbench", "float32, float16, bfloat16"),
        ("sum-f32-n8-segments", "kernelbench", "no segments"),
        ("sum-f32-n8-offsets_i32", "kernelbench", "no segments"),
        ("sum-f32-n8-initial", "kernelbench", "without a carry-in"),
        ("cummax-f32-n8", "kernelbench", "one result"),
        ("sum-f32-n8-mask_b8-line_mask", "kernelbench", "contiguous operands"),
        ("sum-f32-n512-transposed", "cu", "not transposed"),
        ("sum-f32-n8-mask_b8", "gpumode", "one input"),
        ("sum-f32-n8-final", "gpumode", "one output"),
        ("sum-f32-n8-inner4", "gpumode", "one dimension"),
    ],
)
def test_refused(slugs: str, format: str, allowed: str) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        parsed(slugs.split(), format)
    assert allowed in caught.value.allowed or allowed in caught.value.value
    assert f"--format {format}" not in caught.value.hint  # the command that was refused


def test_sums_over_lines_are_refused() -> None:
    """Their kernels take structures, which no launcher of plain arguments has yet."""
    x, b = torch.rand(2, 8, 64, 4), torch.rand(2, 8, 64, 1)
    with scanops.emulate(), scanops.record() as used:
        scanops.scan((x, b), "linear", 2, map=lambda x, b: (x, b), then=lambda h, x, b: h * b, sum=-3)
    (spec,) = used.specs
    for format in FORMATS:
        with pytest.raises(UnsupportedRequest, match="no sum over lines") as caught:
            export(spec, format)
        assert f"scanops generate {spec.slug}" in caught.value.hint


@pytest.mark.parametrize("format", FORMATS)
def test_the_header_names_the_command_and_the_versions(format: str) -> None:
    for tag in ("f32", "e5m2", "u16") if format == "modelnew" else ("f32",):
        slug = f"sum-{tag}-any" if format == "gpumode" else f"sum-{tag}-n8"
        text = parsed([slug], format, "sm_70")
        assert f"scanops export {slug} --format {format} --target sm_70" in text
        assert "11.8 to 12.9" in text and str(Path.home()) not in text
        assert format == "cu" or "Needs torch 2.8 or later" in text


def test_the_commands_of_the_page() -> None:
    """docs/export.md shows the five problems, by the specs that are tested."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    shown = re.findall(r"^scanops export (.*?) -o (\w+)\.py", page, flags=re.MULTILINE)
    assert {name: tuple(words.split()) for words, name in shown if name != "submission"} == PROBLEMS


# ---- exported files, taken apart and run

ALONE = Path(__file__).with_name("alone.py")

# The problems that the project began with, by the specs that they need.
PROBLEMS: dict[str, tuple[str, ...]] = {
    "cumprod": ("prod-f32-n32768",),
    "cumprod_any_dim": ("prod-f32-n1024", "prod-f32-n1024-inner1024"),
    "cumsum_reverse": ("sum-f32-n32768-reverse",),
    "masked_cumsum": ("sum-f32-n32768-mask_b8",),
    "cumsum_exclusive": ("sum-f32-n32768-exclusive",),
}


def parsed(slugs: Sequence[str], format: str = "modelnew", target: str = "sm_90", lines: int | None = None) -> str:
    """The export of these specs; for GPU MODE planned for one line."""
    lines = 1 if format == "gpumode" else lines
    return export([ScanSpec.parse(slug) for slug in slugs], format, target, lines=lines)


def texts(file: str) -> list[str]:
    """The CUDA in a Python file, kernel by kernel: what load_inline is given."""
    statements = (each for each in ast.parse(file).body if isinstance(each, ast.Assign))
    values = {ast.unparse(each.targets[0]): each.value for each in statements}
    return [ast.literal_eval(value) for name, value in values.items() if name.startswith("KERNEL_")]


def run(
    files: Sequence[tuple[str, Sequence[tuple[float, tuple[Any, ...]]]]], folder: Path
) -> list[tuple[list[Any], list[str]]]:
    """Run (exported file, calls) in one process without scanops, for a CPU; a call is (dim, arguments).

    Returns for each file the results of its calls and the Python functions that a repetition of the first call runs.
    """
    # What a store wants of a library, and exported texts lack.
    beside = f"""extern "C" {{ int scanops_abi() {{ return {ABI}; }} int scanops_launch() {{ return 0; }}
    const char* scanops_error_string(int) {{ return ""; }} }}"""
    jobs = []
    for number, (text, calls) in enumerate(files):
        path = folder / f"exported_{number}.py"
        path.write_text(text)
        whole = "\n".join(["#include <cuda_runtime.h>", f"namespace file_{number} {{", *texts(text), "}", beside])
        entry = Store().get_or_build(BuildRequest(name="exported", source=whole, target="cpu"))
        jobs.append((str(path), str(entry.library_path), list(calls)))
    torch.save(jobs, folder / "jobs")
    ran(sys.executable, ALONE, folder / "jobs", folder=folder)
    results: list[tuple[list[Any], list[str]]] = torch.load(folder / "jobs.out", weights_only=False)
    return results
