"""Numbers in generated C++: what a compiler reads is what torch stores, in every dtype."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from scanops.codegen.dtypes import DTYPES, DType, convert_number, literal, number_in
from scanops.codegen.fusion.fused_rows import KEYWORDS, is_field_name
from scanops.codegen.fusion.graph import Graph, Printer
from scanops.errors import UnsupportedRequest
from tests.requests.checks import refused

POWERS = [n + sign for sign in (-1, 0, 1) for n in (2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64)]
WHOLE = [0, 1, -1, 5, True, False, *POWERS, *(-each for each in POWERS), 10**30, -(10**30), 10**400]
REAL = [-0.0, 0.1, -0.3, 1 / 3, 2.5, 3.141592653589793, 16777217.0, 65504.0, 65505.0, 448.0, 449.0, 1e22, -1e30, 1e38]
REAL += [3.4028234663852886e38, 3.5e38, 1e308, 1.7976931348623157e308, math.inf, -math.inf, math.nan]
REAL += [
    1e-3,
    2.0**-9,
    2.0**-10,
    3 * 2.0**-11,
    1e-7,
    1.5e-8,
    1.1754943508222875e-38,
    1e-40,
    1e-45,
    1e-46,
    1e-310,
    5e-324,
]
COMPLEX = [1j, complex(-0.0, 0.1), complex(math.inf, -1e30), complex(math.nan, 1e-45), complex(0, 1e300)]
TYPES = {"float": ("unsigned", 4), "double": ("unsigned long long", 8)}
PRELUDE = """
#include <cmath>
#include <cstdio>
#include <cstring>
template <typename T> struct Complex { T re, im; };
inline float infinity() { return INFINITY; }
template <typename T> void print(T value) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    for (unsigned char each : bytes) std::printf("%02x", each);
    std::printf("\\n");
}
"""


def run_cpp(text: str, folder: Path) -> list[str]:
    """The lines that a C++ program prints."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    (folder / "numbers.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-Wno-unused-function", "-o", "numbers", "numbers.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    return subprocess.run(["./numbers"], cwd=folder, check=True, capture_output=True, text=True).stdout.split()


def stored(number: Any, row: DType) -> torch.Tensor | None:
    """What torch stores for a number, as a value of the kernel; None: it refuses the number, or stores another one."""
    if row.kind == "bool" and number not in (0, 1):
        return None
    if row.kind == "int" and (number != number or not float(number).is_integer()):
        return None
    dtype = getattr(torch, row.name)
    try:
        if row.kind in ("bool", "int"):
            x = torch.tensor(int(number), dtype=dtype)
            if x.item() != number:  # torch lets negative numbers wrap around
                return None
        else:
            x = torch.tensor(number, dtype=torch.complex128 if row.kind == "complex" else torch.float64)
            parts = torch.view_as_real(x) if row.kind == "complex" else x.double()
            highest = torch.finfo(dtype).max
            beyond = parts.isfinite() & (parts.abs() > highest)
            if beyond.any() or (row.bytes == 1 and row.tag != "e5m2" and parts.isinf().any()):
                return None
            x = x.to(dtype)
    except (RuntimeError, OverflowError, ValueError):
        return None
    return x.float() if row.value == "float" else x


def test_a_compiler_reads_the_bits_that_torch_stores(tmp_path: Path) -> None:
    """Every dtype: bounds of its neighbours, fractions, denormals, infinities, NaN; others are refused."""
    lines, wanted, refusals = [], [], 0
    for row in DTYPES.values():
        for number in [*WHOLE, *REAL, *(COMPLEX if row.kind == "complex" else ())]:
            x = None
            if not (isinstance(number, int) and abs(number) >= 2**64):
                x = stored(number, row)
            elif row.kind in ("float", "complex") and abs(number) < 10**300:
                x = stored(float(number), row)
            if x is None:
                refusals += 1
                with pytest.raises(UnsupportedRequest, match="does not hold"):
                    pytest.fail(f"{row.name} {number}: {literal(number, row)}")
                continue
            lines.append(f"print<{row.value}>({literal(number, row)});  // {row.name} {number}")
            bits = x.reshape(1).view(torch.uint8)
            wanted.append((row.name, number, bytes(bits.tolist()).hex(), x))
    text = PRELUDE + "int main() {\n" + "\n".join(lines) + "\n}\n"
    found = run_cpp(text, tmp_path)
    assert len(found) == len(wanted) > 700 and refusals > 100
    for bits, (name, number, expected, x) in zip(found, wanted, strict=True):
        if number != number:  # of which there are several
            value = torch.tensor(list(bytes.fromhex(bits)), dtype=torch.uint8).view(x.dtype)
            assert torch.view_as_real(value)[..., 0].isnan().all() if x.is_complex() else value.isnan().all(), name
        else:
            zero = "uz" in name and number == 0  # these dtypes have no -0
            assert bits == expected or zero, (name, number)


@pytest.mark.parametrize("row", [row for row in DTYPES.values() if row.format is not None], ids=lambda row: row.tag)
def test_formats_are_torchs(row: DType) -> None:
    info = torch.finfo(getattr(torch, row.name))
    assert row.format is not None
    digits, least, highest, has_infinity = row.format
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[row.bytes]
    following = (torch.ones(1).to(getattr(torch, row.name)).view(bits) + 1).view(getattr(torch, row.name))
    assert (info.max, info.smallest_normal) == (highest, 2.0**least)
    assert following.double().item() == 1 + 2.0 ** (1 - digits)  # finfo.eps of float8_e5m2fnuz is another number
    assert has_infinity == torch.tensor(math.inf).to(getattr(torch, row.name)).float().isinf().item()


def test_casts_of_constants_are_torchs() -> None:
    """Integers wrap around, fractions are dropped; what no dtype defines is refused."""
    for value in (0, 1, -1, 300, -129, 2**31, 2**40 + 7, -(2**63), 2**63 - 1, 2.75, -2.75, 0.0, -0.0):
        for row in DTYPES.values():
            if (
                row.kind != "complex"
                and row.name[:6] != "float8"
                and (isinstance(value, int) or row.lowest <= int(value))
            ):
                x = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
                expected = x.to(getattr(torch, row.name)).item()
                if row.kind == "float" and math.isfinite(expected):
                    expected = float(value)  # rounded where it is printed
                assert convert_number(value, row) == expected, (value, row.name)
    assert convert_number(1e39, DTYPES["float32"]) == math.inf and convert_number(math.nan, DTYPES["bool"]) is True
    for value in (math.nan, math.inf, 3e9):
        refused(UnsupportedRequest, lambda v=value: convert_number(v, DTYPES["int32"]))
    refused(UnsupportedRequest, lambda: number_in("1", DTYPES["int32"]))  # type: ignore[arg-type]


def test_operations_on_the_least_numbers(tmp_path: Path) -> None:
    """Texts with negative constants compile, and integers wrap around as torch's do."""
    graph, lines, wanted = Graph(), [], []
    for name in ("int8", "uint8", "int16", "int32", "int64"):
        row, dtype = DTYPES[name], getattr(torch, name)
        for value in (int(row.lowest), int(row.highest), -1 if row.lowest else 1):
            x, number = torch.tensor([value], dtype=dtype), graph.number(value, name)
            for operation, function in (("neg", torch.neg), ("abs", torch.abs), ("not", torch.bitwise_not)):
                term = graph.add(operation, name, number.at)
                nodes = [each if at != number.at else ("operand", name, 0) for at, each in enumerate(graph.nodes)]
                (text,) = Printer(nodes, {("operand", 0): "x"}, False).statements(term.at)[1]
                constant = Printer(graph.nodes, {}, False).statements(term.at)[1][0]
                for each in (text, constant):
                    lines.append(
                        f"{{ [[maybe_unused]] const {row.value} x = {literal(value, row)}; "
                        f"print((long long)({each})); }}"
                    )
                    wanted.append(int(function(x)))
    found = run_cpp(PRELUDE + "int main() {\n" + "\n".join(lines) + "\n}\n", tmp_path)
    whole = [(2**64 + each) % 2**64 for each in wanted]
    assert [int.from_bytes(bytes.fromhex(each), "little") for each in found] == whole


WORDS = """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype
default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch
template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile
wchar_t while xor xor_eq"""  # ISO C++20, [lex.key]


def test_words_of_cpp_are_no_names_of_fields(tmp_path: Path) -> None:
    """Neither reserved words, nor macros of the compiler, nor names that kernels use themselves."""
    assert set(WORDS.split()) <= KEYWORDS
    assert not any(map(is_field_name, (*WORDS.split(), "older", "state", "own0", "own12", "Upper", "_x", "a-b", "", 3)))
    for name in ("own", "owner", "index", "value", "exp", "final", "import", "module", "override", "s", "x", "float4"):
        assert is_field_name(name)
    if shutil.which("g++") is not None:
        command = ["g++", "-std=gnu++20", "-dM", "-E", "-x", "c++", "/dev/null"]
        macros = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        objects = [line.split()[1] for line in macros.splitlines()]
        assert not any(map(is_field_name, objects))
