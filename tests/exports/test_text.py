"""What exported files say: names that old versions of torch have, the rules of those who load them, typed errors."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import pytest

from scanops.codegen.exports.formats import FORMATS, export
from scanops.codegen.operators import OPERATORS, Operator
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from tests.exports.files import PROBLEMS, parsed, texts
from tools.golden import GOLDEN

# What torch 1.13 has of all that a file may name. Each was looked up in its documentation or source:
# load_inline (0.4) with these arguments, get_default_build_root (0.4), is_conj and is_neg (1.10), memory formats (1.5),
# the rest before 1.0.
TORCH = {
    "torch.Size", "torch.Tensor", "torch.__version__", "torch.dtype", "torch.empty", "torch.empty_like", "torch.full",
    "torch.contiguous_format", "torch.zeros", "torch.is_grad_enabled", "torch.nn.Module", "torch.cuda.device",
    "torch.cuda.current_stream", "torch.cuda.get_device_capability", "torch.cuda.get_device_properties",
    "torch.cuda.current_device", "torch._C", "torch.bool", "torch.uint8", "torch.rand", "torch.randint", "torch.int8",
    "torch.int16", "torch.int32", "torch.int64", "torch.float16", "torch.bfloat16", "torch.float32", "torch.float64",
    "torch.complex64", "torch.complex128",
}  # fmt: skip
LOAD_INLINE = {"name", "cpp_sources", "cuda_sources", "extra_cuda_cflags", "build_directory", "is_python_module"}
TENSOR = {
    "shape", "ndim", "dtype", "device", "stride", "numel", "element_size", "data_ptr", "is_contiguous", "contiguous",
    "expand", "requires_grad", "is_conj", "is_neg", "any", "bool",
}  # fmt: skip
VARIABLES = ("x", "y", "mask", "gate", "segment_starts", "offsets", "initial", "tensor", "carry_in", "workspace")
MODULES = {"ctypes", "functools", "hashlib", "inspect", "os", "torch", "torch.utils.cpp_extension"}

# KernelBench's static rules for CUDA at fp32, as its kernel_static_checker publishes them: patterns that a file may
# not have besides names that TORCH, TENSOR and MODULES leave out, and patterns that it needs.
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
    """The five problems and every golden of a format: names of torch 1.13, and the rules of who loads the files."""
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
        assert "torch.Tensor" in names_of_torch(tree) <= TORCH, slugs
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        assert {node.attr for node in attributes if ast.unparse(node.value) in VARIABLES} <= TENSOR, slugs
        (call,) = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_inline")
        assert {keyword.arg for keyword in call.keywords if keyword.arg} | {"name"} == LOAD_INLINE
        body = text.split("SOURCE_1")[0]
        assert "Needs torch 1.13 or later, CUDA 11.8 or later" in body
        assert "scanops" not in re.sub(r"scanops_\w+|scanops export [^\n]*", "", body), slugs
        assert "<cuda_runtime.h>" in text and text.count("#include") == len(texts(text)), slugs
        if format == "kernelbench":
            assert broken(text) == [], slugs
        if format == "gpumode":  # whose server refuses every text with this word, in any case, wherever it stands
            assert "stream" not in text.lower() and "def custom_kernel(data):" in text
    assert count > {"modelnew": len(GOLDEN), "kernelbench": 15, "gpumode": 6}[format]


def test_kernelbench_inputs_and_rules() -> None:
    """The rules find what they forbid: a test that looks for nothing would pass."""
    masked = parsed(PROBLEMS["masked_cumsum"], "kernelbench")
    assert "shape = (32768, 32768)\n" in masked and "torch.randint(0, 2, shape).bool()" in masked
    assert "dtype == torch.bool" in masked and "dtype == torch.float32" in masked and "return [-1]" in masked
    for bad in ("    try:", "z = x.half()", "class T(torch.Tensor):"):
        assert broken(f"{masked}\n{bad}\n"), bad
    assert len(broken("import torch")) == 3


@pytest.mark.parametrize(
    ("formula", "combine"),
    [
        ('y = """x""" and the rest"', "older + newer"),
        ("y[i] = \\sum \\N \\u x", "older + newer"),
        ("x", """older + newer + (sizeof(""\"" "") == 0)"""),
        ("'''x'''", """older + newer + (sizeof(""\"" "") == 0)"""),
    ],
)
def test_formulas_and_expressions_are_no_python(formula: str, combine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = Operator(name="quoted", formula=formula, lift=("x",), combine=(combine,), identity=("0",),
                      commutative=True, start=0, step=lambda h, x: h + x)  # fmt: skip
    monkeypatch.setitem(OPERATORS, quoted.name, quoted)
    spec = ScanSpec(op=quoted.name, dtype="float32", length=64)
    for format in ("modelnew", "kernelbench", "gpumode"):
        text = export(spec, format)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # escapes that Python does not know
            assert (ast.get_docstring(ast.parse(text)) or "").startswith(f"{formula}\n")
        (source,) = texts(text)
        assert f"// scanops: {formula}\n" in source and f"return {combine};" in source


@pytest.mark.parametrize(
    ("slugs", "format", "allowed"),
    [
        ("sum-f32-n9-exclusive-complete-rows", "modelnew", "as many results as items"),
        ("sum-f32-n8 sum-f32-n9", "cu", "one: every kernel has a launcher"),
        ("sum-f32-n8 prod-f32-n8", "modelnew", "specs that differ in length"),
        ("sum-f32-n8", "pdf", "modelnew, cu, kernelbench, gpumode"),
        ("", "modelnew", "one spec or more"),
        ("sum-i64-n8", "kernelbench", "float32, float16, bfloat16"),
        ("sum-f32-n8-segments", "kernelbench", "no segments"),
        ("sum-f32-n8-offsets_i32", "kernelbench", "no segments"),
        ("sum-f32-n8-initial", "kernelbench", "without a carry-in"),
        ("cummax-f32-n8", "kernelbench", "one result"),
        ("sum-f32-n512-transposed", "kernelbench", "contiguous"),
        ("sum-f32-n8-mask_b8", "gpumode", "one input"),
        ("sum-f32-n8-final", "gpumode", "one output"),
        ("sum-f32-n8-inner4", "gpumode", "one dimension"),
    ],
)
def test_refused(slugs: str, format: str, allowed: str) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        parsed(slugs.split(), format)
    assert allowed in caught.value.allowed or allowed in caught.value.value


@pytest.mark.parametrize("format", FORMATS)
def test_the_header_names_the_command_and_the_versions(format: str) -> None:
    versions = {"f32": "1.13", "e5m2": "2.1", "e4m3fnuz": "2.2", "u16": "2.3"}
    for tag, version in versions.items() if format == "modelnew" else [("f32", "1.13")]:
        slug = f"sum-{tag}-any" if format == "gpumode" else f"sum-{tag}-n8"
        text = parsed([slug], format, "sm_70")
        assert f"scanops export {slug} --format {format} --target sm_70" in text
        assert "11.8 to 12.9" in text and str(Path.home()) not in text
        assert format == "cu" or f"Needs torch {version} or later" in text


def test_the_commands_of_the_page() -> None:
    """docs/export.md shows the five problems, by the specs that are tested."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    shown = re.findall(r"^scanops export (.*?) -o (\w+)\.py", page, flags=re.MULTILINE)
    assert {name: tuple(words.split()) for words, name in shown if name != "submission"} == PROBLEMS
