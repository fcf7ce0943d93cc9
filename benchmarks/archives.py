"""Unpack damaged and crafted archives: each gives the very pack or a typed error, in bounded time and memory.

python -m benchmarks archives [--count 10000] [--seed 2026] [-o FILE]

A small pack is built for the CPU and written in both formats. Each case damages one of these archives with a
random edit (bits, bytes, blocks, truncation, insertion, a crafted header or pack.json in a valid archive), unpacks it,
and holds the result against the pack. The figures count outcomes, errors by kind, the slowest case in seconds, the peak
resident memory of the process in MB, and files left behind. The same seed gives the same cases.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scanops.errors import BadStoreEntry, ScanopsError
from scanops.store.archive import pack, unpack
from scanops.store.packs import finish
from tools.figures import STUB

NAME = "k.tar.xz"
SLOW_SECONDS = 20.0  # a case that takes longer counts as a hang
MEMORY_MB = 200.0
JSON_VALUES: list[object] = [None, True, -1, 0, 2**70, 1e308, "", "x" * 300, "../x", "\x1b[2J", [], {}, [[]]]


def bits(data: bytes, rng: random.Random) -> bytes:
    """Flip one or a few bits."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def block(data: bytes, rng: random.Random) -> bytes:
    """Overwrite or insert up to 512 bytes."""
    start, size = rng.randrange(len(data)), rng.choice((1, 4, 16, 64, 512))
    filler = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
    return data[:start] + filler + data[start + rng.choice((0, size)) :]


def cut(data: bytes, rng: random.Random) -> bytes:
    """Keep a part from the beginning."""
    return data[: rng.randrange(len(data))]


def spliced(data: bytes, rng: random.Random) -> bytes:
    """Drop, swap or repeat a part."""
    first, second = sorted(rng.randrange(len(data)) for _ in range(2))
    return rng.choice((data[:first] + data[second:], data[second:] + data[:first], data[:second] + data[first:]))


def json_edit(text: bytes, rng: random.Random) -> bytes:
    """Replace, delete or nest one value of a pack.json."""
    value = json.loads(text)
    node = value
    while True:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if not node[key] or not isinstance(node[key], (dict, list)) or rng.random() < 0.3:
            break
        node = node[key]
    action = rng.randrange(4)
    if action == 0:
        del node[key]
    elif action == 1 and isinstance(node, dict):
        node[f"{key}x"] = node.pop(key)
    else:
        node[key] = rng.choice(JSON_VALUES)
    out = json.dumps(value, allow_nan=True).encode()
    return out if action < 3 else out[:-1] + b"," + b"[" * rng.choice((1, 1000, 100_000))


def crafted(members: list[tuple[str, bytes]], rng: random.Random) -> bytes:
    """Return a sound archive of a pack with one hostile member or an edited pack.json."""
    members = list(members)
    place = rng.randrange(len(members) + 1)
    item, data = tarfile.TarInfo(rng.choice(("../x", "/tmp/x", "a/../../x", "x" * 90, members[-1][0]))), b""
    item.type = rng.choice((*tarfile.SUPPORTED_TYPES, b"x", b"g", b"Z"))
    item.linkname, item.mode = rng.choice(("", "/etc/passwd", "pack.json")), 0o7777
    if rng.random() < 0.5:
        members[0] = (members[0][0], json_edit(members[0][1], rng))
    elif rng.random() < 0.3:
        rng.shuffle(members)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz", preset=0, format=tarfile.GNU_FORMAT) as archive:
        for number, (name, content) in enumerate([*members, ("", b"")]):
            if number == place:
                item.size = rng.choice((0, 3, 2**20, 2**33)) if rng.random() < 0.7 else 0
                data = bytes(min(item.size, 2**20))
                archive.fileobj.write(item.tobuf(tarfile.GNU_FORMAT) + data)  # its size may be a lie
            if name:
                plain = tarfile.TarInfo(name)
                plain.size = len(content)
                archive.addfile(plain, io.BytesIO(content))
    return stream.getvalue()


DAMAGE: tuple[Callable[[bytes, random.Random], bytes], ...] = (bits, bits, block, cut, spliced)


def made(folder: Path) -> Path:
    """Build a small pack of two libraries."""
    from scanops.build_request import BuildRequest
    from scanops.codegen.abi import ABI
    from scanops.store import Store

    for name in ("first", "second"):
        source = f'extern "C" {{{STUB % ABI}}}\n// {name}\n'
        Store(folder).get_or_build(BuildRequest(name=name, source=source, target="cpu"))
    finish(folder)
    shutil.rmtree(folder / ".staging", ignore_errors=True)
    return folder


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def peak_mb() -> float:
    """Return the peak resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e3


def measured(count: int, seed: int, work: Path) -> dict[str, Any]:
    """Return the figures of ``count`` cases."""
    rng, source = random.Random(seed), work / "pack"
    # In another process: building may import torch, whose memory is not that of unpacking.
    code = "import sys; from pathlib import Path; from benchmarks.archives import made; made(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(source)], check=True)
    pack(source, work / NAME)
    original = (work / NAME).read_bytes()
    unpack(work / NAME, work / "whole")
    expected = contents_of(work / "whole")
    members = sorted(expected.items(), key=lambda item: item[0] != "pack.json")
    cases, outcomes, errors = work / "cases", Counter[str](), Counter[str]()
    slowest, raw, before = 0.0, [], peak_mb()
    for number in range(count):
        is_crafted = rng.random() < 0.25
        data = crafted(members, rng) if is_crafted else rng.choice(DAMAGE)(original, rng)
        cases.mkdir()
        (cases / NAME).write_bytes(data)
        began = time.perf_counter()
        try:
            unpack(cases / NAME, cases / "out")
            found = contents_of(cases / "out")
            if is_crafted:  # an edit of a field that nothing depends on
                found["pack.json"] = expected["pack.json"]
            outcome = "same" if found == expected else "different"
        except BadStoreEntry as problem:
            outcome = "refused"
            errors[str(problem.allowed)[:40]] += 1
        except ScanopsError as problem:
            outcome = "other typed error"
            errors[type(problem).__name__] += 1
        except Exception as problem:  # what this looks for
            outcome = "raw error"
            raw.append(f"case {number}: {problem!r:.200}")
        slowest = max(slowest, time.perf_counter() - began)
        if outcome == "refused" and sorted(path.name for path in cases.iterdir()) != [NAME]:
            outcome = "left something behind"
        outcomes[outcome] += 1
        shutil.rmtree(cases)
    escaped = [str(path) for path in (work / "x", work.parent / "x", Path("/tmp/x")) if path.exists()]
    ok = set(outcomes) <= {"same", "refused"} and not escaped and slowest < SLOW_SECONDS and peak_mb() < MEMORY_MB
    return {
        "ok": ok,
        "archives": count,
        "seed": seed,
        "outcomes": dict(sorted(outcomes.items())),
        "refused because not": dict(errors.most_common()),
        "raw": raw[:20],
        "escaped": escaped,
        "slowest_seconds": round(slowest, 3),
        "peak_mb": round(peak_mb(), 1),
        "peak_mb_before": round(before, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases, print the figures as JSON, and return 1 if an outcome or a figure is out of bounds."""
    options = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    options.add_argument("-o", "--output", type=Path, help="write the figures to this file as JSON")
    options.add_argument("--count", type=int, default=10_000, help="number of archives")
    options.add_argument("--seed", type=int, default=2026)
    chosen = options.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(chosen.count, chosen.seed, Path(folder))
    print(json.dumps(figures))
    if chosen.output:
        from benchmarks.common import write  # imports torch, whose memory is not that of unpacking

        write(chosen.output, figures)
    return 0 if figures["ok"] else 1
