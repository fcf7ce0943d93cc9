"""Ranks for tests: processes that are forked once, each of which runs the functions that tests name."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scanops.distributed import call_order, links
from scanops.runtime import native

SECONDS = 240.0  # that a test may take, with its kernels to build


class Ranks:
    """Processes of one gloo group; those of a test that fails are ended, and the next test gets others."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._started: list[tuple[Any, Connection]] = []

    def run(self, job: Callable[..., None], *given: Any) -> None:
        """Run ``job(rank, *given)`` on every rank; raises AssertionError with what the ranks raised."""
        if not self._started:
            self._start()
        for _, connection in self._started:
            connection.send((job.__module__, job.__qualname__, given))
        left, said = {connection: rank for rank, (_, connection) in enumerate(self._started)}, []
        while left and (ready := wait([*left], SECONDS)):
            for connection in ready:
                rank = left.pop(connection)  # type: ignore[arg-type]
                try:
                    problem = connection.recv()  # type: ignore[union-attr]
                except EOFError:
                    problem = "the process ended"
                if problem:
                    said.append(f"rank {rank}: {problem}")
        if left or said:
            self.end()
            raise AssertionError("\n".join([*said, *[f"rank {rank} did not end" for rank in left.values()]]))

    def end(self) -> None:
        """End the processes."""
        for process, connection in self._started:
            process.kill()
            process.join()
            connection.close()
        self._started.clear()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.distributed.processes"])
        folder = tempfile.mkdtemp(prefix="scanops-ranks-")
        for rank in range(self.count):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.count, folder, there), daemon=True)
            process.start()
            there.close()
            self._started.append((process, here))


def serve(rank: int, count: int, folder: str, connection: Connection) -> None:
    """Run what tests ask for, until they close the connection."""
    torch.set_num_threads(1)
    links.LEAST_WORDS, call_order.NOTES = 2**9, 32  # so that tests reach the ends of both
    if native.serve is None:
        os.environ["SCANOPS_LOCK_SECONDS"] = "600"  # another rank may be building it
        assert native.get(build=True)
    meet = Path(folder, "meet")
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=count, timeout=limit)
    while True:
        try:
            module, name, given = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            getattr(importlib.import_module(module), name)(rank, *given)
            connection.send("")
        except BaseException:
            connection.send(traceback.format_exc())
