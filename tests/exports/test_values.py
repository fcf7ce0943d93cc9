"""Exported files give the values of the sequential scan, emulated in a process without scanops; nvcc accepts them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

import scanops
from scanops.builders.toolchain import find_nvcc
from scanops.codegen.exports.formats import export
from scanops.codegen.spec import ScanSpec
from scanops.runtime.kernels import default_target
from tests.exports.test_text import PROBLEMS, parsed, run, texts
from tests.numbers import matrix, oracle
from tests.scripts import ran
from tests.store.sources import needs_nvcc
from tests.templates.test_golden import STRICT, together
from tests.templates.test_warnings import MAP

_PLAIN = dict.fromkeys(("mask", "carry", "segments"), "none") | {"reverse": "forward", "exclusive": "inclusive"}
# (route, operator, dtype, other axes): an operator, an operand, a strategy or a dtype that no row above has
CELLS = tuple(
    matrix.Cell(route=route, op=op, dtype=dtype, **{"layout": "dense", **_PLAIN, **axes})
    for route, op, dtype, axes in (
        ("one_tile", "prod", "float32", {"carry": "initial"}),
        ("panels_few", "sum", "float64", {"mask": "bool", "reverse": "reverse", "carry": "final"}),
        ("wide_columns", "linear", "bfloat16", {"carry": "both", "reverse": "reverse"}),
        ("whole_warp", "cummax", "float16", {"segments": "flags", "reverse": "reverse"}),
        ("any_lanes", "sum", "int32", {"segments": "int64"}),
        ("staged", "logical_or", "float32", {"layout": "misaligned"}),
        ("lanes", "prod", "complex64", {"mask": "number", "exclusive": "exclusive"}),
        ("lanes", "sum", "float8_e4m3fn", {}),
    )
)


# Calls of a masked sum of 100 items a line, and a part of the error.
_X, _MASK = torch.ones(3, 100), torch.ones(3, 100, dtype=torch.bool)
WRONG: tuple[tuple[float, tuple[Any, ...], str], ...] = (
    (1, ([1.0], _MASK), "TypeError: x is list: it has to be a tensor"),
    (1, (_X.double(), _MASK), "TypeError: x is torch.float64: this file reads torch.float32"),
    (1, (_X, _MASK.to(torch.int8)), "TypeError: mask is torch.int8: this file reads torch.bool or torch.float32"),
    (1, (_X.to("meta"), _MASK), "ValueError: x is on meta: all tensors have to be on one cuda device"),
    (1, (_X, _MASK[0]), "ValueError: mask of shape [3, 100] and strides [0, 1] has to be contiguous"),
    (1, (_X[:, ::2], _MASK[:, ::2]), "ValueError: x of shape [3, 50] and strides [100, 2] has to be contiguous"),
    (2, (_X, _MASK), "IndexError: dim 2 of a tensor of shape [3, 100]"),
    (0, (_X, _MASK), "ValueError: 3 items along dim, inner 100"),
    (
        1,
        (torch.ones(304)[1:301].view(3, 100), _MASK),
        "[4, 0] bytes past 16-byte boundaries, Bool: this file has kernels for sum-",
    ),
    (1, (_X.clone().requires_grad_(), _MASK), "RuntimeError: x requires a gradient, and there is none here"),
    (1, (torch._neg_view(_X), _MASK), "ValueError: x is a lazy view: resolve_conj() and resolve_neg() come first"),
    (1.5, (_X, _MASK), "TypeError: dim is 1.5: it has to be a whole number"),
)
# Calls of a kernel with offsets.
WRONG_OFFSETS: tuple[tuple[float, tuple[Any, ...], str], ...] = (
    (1, (_X, torch.tensor([[0, 100]])), "ValueError: offsets are of shape [1, 2]: one dimension, 0, ..., 100"),
    (1, (_X, torch.tensor([0, 9, 8, 100])), "ValueError: offsets have to rise from 0 to 100"),
    (1, (_X, torch.tensor([0, 99])), "ValueError: offsets have to rise from 0 to 100"),
)
# Calls of a kernel with a carry-in and a mask, for lines of up to 200 items.
WRONG_EXPANDED: tuple[tuple[float, tuple[Any, ...], str], ...] = (
    (1, (_X, _MASK[:2], 0.0), "RuntimeError: The expanded size of the tensor (3) must match the existing size (2)"),
    (1, (_X, _MASK[None], 0.0), "the number of sizes provided (2) must be greater or equal"),
    (
        1,
        (_X, _MASK, torch.zeros(4)),
        "RuntimeError: The expanded size of the tensor (3) must match the",
    ),
    (1, (_X, _MASK, "0"), "TypeError: initial is str: it has to be a tensor"),
    (1, (torch.ones(3, 201), torch.ones(3, 201) > 0, 0.0), "ValueError: 201 items along dim, inner 1, "),
)


def formats() -> tuple[tuple[str, list[tuple[float, tuple[Any, ...], torch.Tensor]], Any], ...]:
    """Exported files, each with calls and their results, and with wrong calls."""
    x, keep = oracle.values("sum", (3, 100), torch.float32), oracle.selection((3, 100))
    row, cube = oracle.values("sum", (70001,), torch.float32), oracle.values("prod", (64, 64), torch.float32)
    masked, line, two = x.where(keep, 0).cumsum(1), row.cumsum(0), _X.cumsum(1) + 2
    return (
        (
            parsed(["sum-f32-n100-mask_b8"], "kernelbench"),
            [(-1, (x, keep), masked), (-1, (x, keep.float()), masked), (1, (x[:0], keep[:0]), x[:0])],
            WRONG,
        ),
        (parsed(["sum-f32-any"], "gpumode"), [(0, (each,), line) for each in (row, (row, row.new_ones(70001)))], ()),
        (  # the kernel for any length has a workspace, the others leave arguments of their launcher unread
            parsed(["prod-f32-n64", "prod-f32-n64-inner64", "prod-f32-any"]),
            [(dim, (each,), each.cumprod(dim)) for each, dim in ((cube, 0), (cube, 1), (row, 0))],
            (),
        ),
        (parsed(["sum-f32-n100-offsets_i64"]), [(1, (_X, torch.tensor([0, 0, 100])), _X.cumsum(1))], WRONG_OFFSETS),
        (parsed(["sum-f32-any-le200-mask_b8-initial"]), [(1, (_X, _MASK, 2.0), two)], WRONG_EXPANDED),
    )


# Products of 2 x 2 matrices whose entries are four tensors.
PRODUCT = scanops.operator(
    fields=("a", "b", "c", "d"),
    identity=(1.0, 0.0, 0.0, 1.0),
    combine=lambda o, n: (
        n.a * o.a + n.b * o.c,
        n.a * o.b + n.b * o.d,
        n.c * o.a + n.d * o.c,
        n.c * o.b + n.d * o.d,
    ),
)


def expressions() -> tuple[tuple[Any, int, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]], ...]:
    """Scans of several tensors: the call, the dimension, the operands in the order of a file, and the right results."""
    x, bias, scale = torch.rand(2, 100, 64), torch.rand(64), -torch.rand(64)
    entries = tuple(torch.rand(4, 3, 40) * 0.5)
    product = torch.stack(entries, -1).view(3, 40, 2, 2)
    for at in range(1, 40):  # sequentially
        product[:, at] = product[:, at] @ product[:, at - 1]
    gate, wide = torch.rand(3, 4, 40), torch.rand(4, 40, 6)
    line, h = torch.rand(4, 1), torch.zeros(3, 4, 40)
    for at in range(40):
        h[..., at] = gate[..., at] * (h[..., at - 1] if at else 0) + wide[..., at, 0] * line[..., 0]
    each = wide[:, :, 0].expand(3, 4, 40)  # of strides of its own
    return (
        (lambda *given: scanops.scan(given, PRODUCT, 1), 1, entries, tuple(product.flatten(2).unbind(-1))),
        (  # operands of one item per line, and two results
            lambda x, bias, scale: scanops.scan(
                (bias, x, scale),
                "sum",
                1,
                map=lambda bias, x, scale: F.softplus(x + bias) * scale,
                then=lambda y, bias, x, scale: (y, x + bias),
            ),
            1,
            (x, bias, scale),
            ((F.softplus(x + bias) * scale).cumsum(1), x + bias),
        ),
        (  # an operand of one item per step
            lambda x, step: scanops.scan((x, step), "sum", 1, map=lambda x, step: x * step),
            1,
            (x, step := torch.rand(2, 100, 1)),
            ((x * step).cumsum(1),),
        ),
        (
            lambda gate, each, line: scanops.scan(
                (gate, each, line), "linear", -1, map=lambda gate, each, line: (gate, each * line)
            ),
            -1,
            (gate, each, line),
            (h,),
        ),
    )


class Outcomes(NamedTuple):
    """What exported files computed, all of them in one process: to read torch and its headers takes seconds."""

    drawn: list[dict[str, Any]]  # the operands of each of CELLS
    cells: list[Any]  # results
    expressions: list[tuple[Any, tuple[torch.Tensor, ...]]]  # results, and the right ones
    formats: list[Any]  # of formats(): the results of each call
    traced: list[str]  # Python functions that a repeated call of the first of these ran


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    drawn = [matrix.operands(cell) for cell in CELLS]
    files: list[tuple[str, list[tuple[float, tuple[Any, ...]]]]] = []
    for cell, given in zip(CELLS, drawn, strict=True):
        operands = [given[name] for name in ("x", "mask", "gate", "starts", "offsets", "initial")]
        call = (matrix.ROUTES[cell.route].dim, tuple(each for each in operands if each is not None))
        key = matrix.key_of(cell, given)
        files.append((parsed([key.spec.slug], lines=key.spec.inner if key.is_few else None), [call]))
    rights = []
    for call, dim, operands, right in expressions():
        with scanops.emulate(), scanops.record() as used:
            call(*operands)
        (spec,) = used.specs
        files.append((export(spec), [(dim, operands)]))
        rights.append(right)
    files += [(text, [each[:2] for each in (*right, *wrong)]) for text, right, wrong in formats()]
    found = run(files, tmp_path_factory.mktemp("exported"))
    results, count, fused = [each for each, _ in found], len(CELLS), len(rights)
    cells, others = [each for (each,) in results[: count + fused]], results[count + fused :]
    pairs = list(zip(cells[count:], rights, strict=True))
    return Outcomes(drawn, cells[:count], pairs, others, found[count + fused][1])


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_every_kind_of_spec(outcomes: Outcomes) -> None:
    for cell, given, found in zip(CELLS, outcomes.drawn, outcomes.cells, strict=True):
        assert not isinstance(found, str), f"{cell}: {found}"
        oracle.compare(cell.op, found if isinstance(found, tuple) else (found,), matrix.expected(cell, given))


def test_expressions(outcomes: Outcomes) -> None:
    """Operators of several tensors, map and then, operands of a line and of any strides."""
    for found, right in outcomes.expressions:
        assert not isinstance(found, str), found
        torch.testing.assert_close(found if isinstance(found, tuple) else (found,), right)


def test_formats_shapes_and_bad_calls(outcomes: Outcomes) -> None:
    for (_, right, wrong), given in zip(formats(), outcomes.formats, strict=True):
        for result, (*_, part) in zip(given, (*right, *wrong), strict=True):
            same = part in result if isinstance(part, str) else torch.equal(result, part)
            assert same, (result, part)
    # forward, below what torch has around it
    assert outcomes.traced.count("forward") == 1 and len(outcomes.traced) <= 5, outcomes.traced


# The five problems, and a row of any length. KernelBench's format takes masks of float32 as well.
FORMATS = {"cumprod_any_dim": "kernelbench", "masked_cumsum": "kernelbench"}
ON_A_GPU = {name: (slugs, FORMATS.get(name, "modelnew")) for name, slugs in PROBLEMS.items()}
ON_A_GPU["gpumode"] = (("sum-f32-any-le1073741824",), "gpumode")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu(name: str, tmp_path: Path) -> None:
    """Built by load_inline, in a process that cannot import scanops, held to torch."""
    (tmp_path / "exported.py").write_text(parsed(*ON_A_GPU[name], default_target()))
    words = (Path(__file__).with_name("alone.py"), tmp_path / "exported.py", name)
    ran(sys.executable, *words, folder=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "extensions"))


# Launchers with every argument that there is, and the formats.
FILES = (
    ("sum-f32-n32768-mask_b8", "cu"),
    ("linear-bf16-n300-inner64-gate_f32-offsets_i32-initial-final-reverse", "cu"),
    ("cummax-f32-n4096", "cu"),
    ("sum-f32-n32768 sum-f32-any-le1073741824", "modelnew"),  # the first leaves arguments of its launcher unread
    ("sum-f64-n32768-inner1000-mask_f32-reverse-exclusive-initial", "cu"),
    ("sum-f32-n1000-inner24-mask_b8-columns-line_mask", "cu"),
)


@needs_nvcc
def test_nvcc(tmp_path: Path) -> None:
    files = [(parsed(slugs.split(), format), format) for slugs, format in FILES]
    files.append((export(ScanSpec(op="sum", dtype="float32", length=131072, map=MAP), "cu"), "cu"))
    cuda = [text for file, format in files for text in ([file] if format == "cu" else texts(file))]
    source = tmp_path / "exports.cu"
    source.write_text(together(cuda))
    command = [str(find_nvcc().path), "-c", *STRICT, "-gencode=arch=compute_90,code=sm_90", str(source)]
    done = ran(*command, "-o", tmp_path / "exports.o")
    assert "warning" not in (done.stdout + done.stderr).lower()


@needs_nvcc
def test_the_command_in_a_cu_file(tmp_path: Path) -> None:
    """The first line of the header is what a shell takes."""
    text = parsed(["sum-f32-n4"], "cu")
    (tmp_path / "scan.cu").write_text(text)
    line = next(line for line in text.splitlines() if "nvcc" in line).removeprefix("//").replace("THIS_FILE", "scan.cu")
    ran("/bin/sh", "-c", line.replace("nvcc", str(find_nvcc().path), 1), folder=tmp_path)
    assert b"scan_launch" in (tmp_path / "scan.so").read_bytes()
