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
from tests.exports.rules import broken
from tools.golden import GOLDEN

# What torch 1.13 has of all that a file may name; dtypes apart. Each was looked up in its documentation or source:
# load_inline (0.4) with these arguments, get_default_build_root (0.4), is_conj and is_neg (1.10), the rest before 1.0.
TORCH = {
    "torch.Tensor", "torch.__version__", "torch.empty", "torch.zeros", "torch.tensor", "torch.rand", "torch.randint",
    "torch.is_grad_enabled", "torch.no_grad", "torch.nn", "torch.nn.Module", "torch.utils.cpp_extension",
    "torch.cuda.device", "torch.cuda.current_stream", "torch.cuda.get_device_capability",
    "torch.cuda.get_device_properties", "torch.cuda.current_device", "torch._C",
}  # fmt: skip
LOAD_INLINE = {"name", "cpp_sources", "cuda_sources", "extra_cuda_cflags", "build_directory", "is_python_module"}
TENSOR = {
    "shape", "ndim", "dtype", "device", "stride", "numel", "element_size", "data_ptr", "is_contiguous", "contiguous",
    "expand", "requires_grad", "is_conj", "is_neg", "any", "bool",
}  # fmt: skip
VARIABLES = ("x", "y", "out", "mask", "gate", "segment_starts", "offsets", "initial", "tensor", "carry_in", "workspace")
DTYPES_OF_1_13 = {
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128"),
}
MODULES = {"contextlib", "ctypes", "functools", "inspect", "os", "torch", "torch.nn", "torch.utils.cpp_extension"}


def names_of_torch(tree: ast.AST) -> set[str]:
    """Every dotted name that begins with torch, at its longest."""
    dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = {name for name in dotted if re.fullmatch(r"torch(\.\w+)+", name)}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


@pytest.mark.parametrize("format", ["modelnew", "kernelbench", "gpumode"])
def test_what_files_name(format: str) -> None:
    """The five problems and every golden of a format: names of torch 1.13, and the rules of who loads the files."""
    dtypes: set[str] = set()
    count = 0
    for slugs in [*(slugs for slugs, _, _ in PROBLEMS.values()), *((row.slug,) for row in GOLDEN)]:
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
        named = names_of_torch(tree)
        types = {name.removeprefix("torch.") for name in named} & DTYPES_OF_1_13
        dtypes |= types
        assert named - {f"torch.{name}" for name in types} <= TORCH, slugs
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        assert {node.attr for node in attributes if ast.unparse(node.value) in VARIABLES} <= TENSOR, slugs
        (call,) = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_inline")
        assert {keyword.arg for keyword in call.keywords if keyword.arg} | {"name"} == LOAD_INLINE
        body = text.split("SOURCE_1")[0]
        assert max(len(line) for line in body.splitlines() if "scanops export" not in line) <= 120, slugs
        assert 'if "no_implicit_headers" in' not in body and body.count("no_implicit_headers") == 2
        assert "Needs torch 1.13 or later, CUDA 11.8 or later" in body
        assert "scanops" not in re.sub(r"scanops_\w+|scanops export [^\n]*", "", body), slugs
        assert "<cuda_runtime.h>" in text and text.count("#include") == len(texts(text)), slugs
        if format == "kernelbench":
            assert broken(text) == [], slugs
        if format == "gpumode":  # whose server refuses every text with this word, in any case, wherever it stands
            assert "stream" not in text.lower() and "def custom_kernel(data):" in text
    assert count > {"modelnew": len(GOLDEN), "kernelbench": 15, "gpumode": 6}[format]
    assert "float32" in dtypes


def test_dtypes_of_later_versions_are_said() -> None:
    said = {tag: export(ScanSpec(op="sum", dtype=tag, length=8)).split("Needs torch ")[1].split()[0] for tag in
            ("f32", "e5m2", "e4m3fnuz", "u16")}  # fmt: skip
    assert said == {"f32": "1.13", "e5m2": "2.1", "e4m3fnuz": "2.2", "u16": "2.3"}


def test_kernelbench_inputs_and_rules() -> None:
    """The rules find what they forbid: a test that looks for nothing would pass."""
    masked = parsed(PROBLEMS["masked_cumsum"][0], "kernelbench")
    assert "return [torch.rand(32768, 32768), torch.randint(0, 2, (32768, 32768)).bool()]" in masked
    assert "mask=torch.bool" in masked and "mask=torch.float32" in masked and "return [-1]" in masked
    for bad in ("    try:", "import threading", "y = torch.cumsum(x, 1)", "z = x.half()", "class T(torch.Tensor):"):
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
def test_what_somebody_wrote_of_their_operator_is_no_python(
    formula: str, combine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quoted = Operator(name="quoted", formula=formula, lift=("x",), combine=(combine,), identity=("0",),
                      commutative=True, start=0, step=lambda h, x: h + x)  # fmt: skip
    monkeypatch.setitem(OPERATORS, quoted.name, quoted)
    spec = ScanSpec(op=quoted.name, dtype="float32", length=64)
    for format in ("modelnew", "kernelbench", "gpumode"):
        text = export(spec, format)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # escapes that Python does not know
            assert (ast.get_docstring(ast.parse(text)) or "").startswith(f"{formula}\n")
        (source,) = texts(text).values()
        assert f"// scanops: {formula}\n" in source and f"return {combine};" in source


@pytest.mark.parametrize(
    ("slugs", "format", "allowed"),
    [
        ("sum-f32-n8 sum-f32-n9", "cu", "one: every kernel has a launcher"),
        ("sum-f32-n8 prod-f32-n8", "modelnew", "specs that differ in length"),
        ("sum-f32-n96-inner3-transposed sum-f32-n96-inner96-transposed", "modelnew", "same arguments"),
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
def test_a_file_names_its_command(format: str) -> None:
    slug = "sum-f32-any-few" if format == "gpumode" else "sum-f32-n8"
    text = parsed([slug], format, "sm_70")
    assert f"scanops export {slug} --format {format} --target sm_70" in text
    assert "11.8 to 12.9" in text and str(Path.home()) not in text


def test_the_commands_of_the_page() -> None:
    """docs/export.md shows the five problems, by the specs that are tested."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    shown = re.findall(r"^scanops export (.*?) -o (\w+)\.py", page, flags=re.MULTILINE)
    assert {name: tuple(words.split()) for words, name in shown if name != "submission"} == {
        name: slugs for name, (slugs, _, _) in PROBLEMS.items()
    }
