"""Scans in Triton, as a user of Triton writes them: associative_scan over a tile, a carry over tiles, two passes
where a line is split over programs. Imported only where there is Triton.

``rows`` or lines lie [outer, length, inner] in memory; a *chunk* is the part of a line that one program scans.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _add(older, newer):
    return older + newer


@triton.jit
def _multiply(older, newer):
    return older * newer


@triton.jit
def _scan(values, AXIS: tl.constexpr, PRODUCT: tl.constexpr):
    if PRODUCT:
        return tl.associative_scan(values, AXIS, _multiply)
    else:
        return tl.associative_scan(values, AXIS, _add)


@triton.jit
def _total(values, AXIS: tl.constexpr, PRODUCT: tl.constexpr):
    if PRODUCT:
        return tl.reduce(values, AXIS, _multiply)
    else:
        return tl.reduce(values, AXIS, _add)


@triton.jit
def whole_rows(
    x,
    mask,
    y,
    rows,
    LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM: tl.constexpr,
    PRODUCT: tl.constexpr,
    REVERSE: tl.constexpr,
    EXCLUSIVE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Scan ROWS rows per program, each one tile of BLOCK items."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    item = tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (item[None, :] < LENGTH)
    place = item
    if REVERSE:
        place = LENGTH - 1 - item
    at = row[:, None] * LENGTH + place[None, :]
    values = tl.load(x + at, mask=inside, other=0).to(SUM)
    if MASKED:
        kept = tl.load(mask + at, mask=inside, other=0)
        values = tl.where(kept != 0, values, PRODUCT)
    scanned = _scan(values, 1, PRODUCT)
    if EXCLUSIVE:
        step = 1
        if REVERSE:
            step = -1
        first = tl.full([ROWS, BLOCK], PRODUCT, SUM)
        tl.store(y + at, first.to(y.dtype.element_ty), mask=inside & (item[None, :] == 0))
        tl.store(y + at + step, scanned.to(y.dtype.element_ty), mask=inside & (item[None, :] < LENGTH - 1))
    else:
        tl.store(y + at, scanned.to(y.dtype.element_ty), mask=inside)


@triton.jit
def row_totals(x, totals, length, chunk, chunks, BLOCK: tl.constexpr, SUM: tl.constexpr):
    """Sum each chunk of each row."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    item = tl.arange(0, BLOCK)
    first = part * chunk
    last = min(first + chunk, length)
    sums = tl.zeros([BLOCK], SUM)
    for start in range(first, last, BLOCK):
        at = start + item
        sums += tl.load(x + row * length + at, mask=at < last, other=0).to(SUM)
    tl.store(totals + row * chunks + part, _total(sums, 0, 0))


@triton.jit
def row_chunks(
    x,
    mask,
    y,
    totals,
    length,
    chunk,
    chunks,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SUM: tl.constexpr,
    PRODUCT: tl.constexpr,
    REVERSE: tl.constexpr,
    EXCLUSIVE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Scan a chunk of a row tile by tile, from the totals of the preceding chunks."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    item = tl.arange(0, BLOCK)
    first = part * chunk
    last = min(first + chunk, length)
    carry = tl.full([], PRODUCT, SUM)
    if CHUNKS > 1:
        before = tl.arange(0, CHUNKS)
        carry = _total(tl.load(totals + row * chunks + before, mask=before < part, other=0), 0, 0)
    for start in range(first, last, BLOCK):
        i = start + item
        inside = i < last
        at = i
        if REVERSE:
            at = length - 1 - i
        at = row * length + at
        values = tl.load(x + at, mask=inside, other=0).to(SUM)
        if MASKED:
            kept = tl.load(mask + at, mask=inside, other=0)
            values = tl.where(kept != 0, values, PRODUCT)
        scanned = _scan(values, 0, PRODUCT)
        total = _total(values, 0, PRODUCT)
        scanned = carry * scanned if PRODUCT else carry + scanned
        if EXCLUSIVE:
            step = 1
            if REVERSE:
                step = -1
            head = tl.full([BLOCK], PRODUCT, SUM)
            tl.store(y + at, head.to(y.dtype.element_ty), mask=inside & (i == 0))
            tl.store(y + at + step, scanned.to(y.dtype.element_ty), mask=inside & (i < length - 1))
        else:
            tl.store(y + at, scanned.to(y.dtype.element_ty), mask=inside)
        carry = carry * total if PRODUCT else carry + total


@triton.jit
def column_totals(
    x, totals, length, inner, chunk, chunks, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr
):
    """Sum each chunk of each column."""
    outer, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    item = tl.arange(0, BLOCK)
    first = part * chunk
    last = min(first + chunk, length)
    sums = tl.zeros([BLOCK, COLUMNS], SUM)
    for start in range(first, last, BLOCK):
        i = start + item
        at = (outer * length + i[:, None]) * inner + column[None, :]
        sums += tl.load(x + at, mask=(i[:, None] < last) & (column[None, :] < inner), other=0).to(SUM)
    tl.store(totals + (outer * chunks + part) * inner + column, _total(sums, 0, 0), mask=column < inner)


@triton.jit
def column_chunks(
    x,
    y,
    totals,
    length,
    inner,
    chunk,
    chunks,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SUM: tl.constexpr,
):
    """Scan a chunk of COLUMNS columns tile by tile, from the totals of the preceding chunks."""
    outer, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    item = tl.arange(0, BLOCK)
    first = part * chunk
    last = min(first + chunk, length)
    carry = tl.zeros([COLUMNS], SUM)
    if CHUNKS > 1:
        before = tl.arange(0, CHUNKS)
        where = (outer * chunks + before[:, None]) * inner + column[None, :]
        wanted = (before[:, None] < part) & (column[None, :] < inner)
        carry = _total(tl.load(totals + where, mask=wanted, other=0), 0, 0)
    for start in range(first, last, BLOCK):
        i = start + item
        inside = (i[:, None] < last) & (column[None, :] < inner)
        at = (outer * length + i[:, None]) * inner + column[None, :]
        values = tl.load(x + at, mask=inside, other=0).to(SUM)
        scanned = _scan(values, 0, 0) + carry[None, :]
        tl.store(y + at, scanned.to(y.dtype.element_ty), mask=inside)
        carry += _total(values, 0, 0)
