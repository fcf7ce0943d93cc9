"""How many builds fit a machine, and what threads are given and give back."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path

import pytest

from scanops import processes

GB = 10**9
WORD: ContextVar[str] = ContextVar("word", default="none")


STAT = f"anon {GB}\nfile {3 * GB}\nshmem {GB}\ninactive_file {GB}\nactive_file {GB}\n"
# Files of a machine with 8 cores -> the jobs that fit
MACHINES: tuple[tuple[dict[str, str], int], ...] = (
    ({}, 8),  # no /proc: a job a core
    ({"meminfo": f"MemTotal: 9 kB\nMemAvailable: {6 * GB // 1024} kB\nHugePages_Free: 0"}, 6),
    ({"cpu.max": "max 100000"}, 8),
    ({"cpu.max": "250000 100000"}, 3),
    ({"cpu.max": "9000000 100000"}, 8),
    ({"memory.max": "max", "memory.current": "5"}, 8),
    ({"memory.max": f"{4 * GB}", "memory.current": f"{GB}"}, 3),
    ({"memory.max": f"{4 * GB}", "memory.current": f"{4 * GB}"}, 1),
    # What was read or written lately counts as used and is given up: an install has filled the group with it.
    ({"memory.max": f"{4 * GB}", "memory.current": f"{4 * GB}", "memory.stat": STAT}, 2),
)


@pytest.mark.parametrize(("files", "jobs"), MACHINES)
def test_jobs_fit_the_memory_and_the_cores_that_the_control_group_leaves(
    files: dict[str, str], jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n", encoding="ascii")
    monkeypatch.setattr(processes, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(processes, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processes.jobs_that_fit() == jobs
    assert processes.jobs_that_fit(1) == 1


@pytest.mark.parametrize("at_a_time", [1, 3])
def test_results_keep_the_order_and_threads_the_context(at_a_time: int) -> None:
    def work(number: int) -> tuple[int, str, bool]:
        heard = WORD.get()
        WORD.set(f"of {number}")  # is seen by no other
        return number, heard, processes.SEVERAL.get()

    token = WORD.set("here")
    try:
        assert processes.at_once(work, range(7), at_a_time) == [(number, "here", True) for number in range(7)]
    finally:
        WORD.reset(token)
    assert processes.at_once(lambda item: processes.SEVERAL.get(), [0], at_a_time) == [False]
    assert processes.at_once(work, [], at_a_time) == [] and not processes.SEVERAL.get()
