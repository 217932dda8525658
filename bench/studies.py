"""What all studies need: a file with a result a line, and runs in parallel processes of one thread each."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

Item = TypeVar("Item")
Result = TypeVar("Result")


def append(path: Path, result: Any) -> None:
    """Append a result, which is a dataclass, in one write. Other processes may do so at the same time."""
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(result)) + "\n")


def read(path: Path, kind: type[Result]) -> list[Result]:
    """All results in a file; none without one. Raises ValueError for a line that is no result, and names it."""
    adapter, found = TypeAdapter(kind), []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), start=1):
        try:
            found.append(adapter.validate_json(line))
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise ValueError(f"{path}:{number}: is no result: {message}; remove the line") from None
    return found


def carry_out(work: Callable[[Item], Result], missing: Callable[[], Sequence[Item]], jobs: int) -> Iterator[Result]:
    """Work on all missing items, `jobs` at a time, and yield each result when it is there.

    missing: asked again after each result. The caller must have recorded that result by then. Items under way may be
    among them.
    """
    running: dict[Future[Result], Item] = {}
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads can hang
    with ProcessPoolExecutor(jobs, context, initializer=_begin) as pool:
        try:
            while True:
                waiting = [item for item in missing() if item not in running.values()]
                for item in waiting[: jobs - len(running)]:
                    running[pool.submit(work, item)] = item
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    yield future.result()
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _begin() -> None:
    os.nice(5)  # a study runs for hours beside other work
    torch.set_num_threads(1)
