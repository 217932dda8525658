"""Run a study: processes side by side, with a view of how far each is and when all of it will be over."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.convergence.arms import ARMS
from bench.convergence.plan import Study, next_runs, runs_at_least
from bench.convergence.run import Result, Run, read, settings_of

ERROR_LINES = 15


class StudyError(Exception):
    """A run ended with an error, or the folder holds another study's results."""


class Going:
    """What goes on, for the view. rate: tokens a second of all runs together, as measured since the start."""

    def __init__(self) -> None:
        self.running: dict[Run, int] = {}
        self.left: list[Run] = []
        self.done: list[Result] = []
        self._began = time.monotonic()
        self._tokens = 0

    def add(self, tokens: int) -> None:
        self._tokens += tokens

    def left_s(self) -> float | None:
        """Seconds to the end of all that is known to be left; None while nothing is measured."""
        passed = time.monotonic() - self._began
        if not self._tokens or passed < 1:
            return None
        left = sum(run.tokens for run in self.left) - sum(self.running.values())
        return max(0.0, left) * passed / self._tokens


def results_in(folder: Path, study: Study) -> list[Result]:
    """What is there of this study. Raises StudyError for results of other texts, or of arms that were set otherwise."""
    results = [read(path) for path in sorted(folder.glob("*.json"))]
    mine = [result for result in results if result.run.size == study.size and result.run.arm in study.arms]
    if len({result.corpus for result in mine}) > 1:
        raise StudyError(
            f"{folder} has results on different texts (another Python's standard library); give another --into"
        )
    for result in mine:
        now = settings_of(ARMS[result.run.arm])
        changed = [name for name, value in result.settings.items() if value != now.get(name)]
        if changed:
            raise StudyError(
                f"{folder / result.run.name}.json was run with another {', '.join(changed)} than the arm has now; "
                "remove it, or give another --into"
            )
    return mine


async def run_all(study: Study, folder: Path, jobs: int, show: Callable[[Going], None]) -> list[Result]:
    """Run what is missing, `jobs` at a time, one thread each. A run that was broken off begins anew."""
    going = Going()
    tasks: dict[asyncio.Task[None], Run] = {}
    try:
        while True:
            going.done = results_in(folder, study)
            waiting = [run for run in next_runs(study, going.done) if run not in tasks.values()]
            going.left = runs_at_least(study, going.done)
            while waiting and len(tasks) < jobs:
                run = waiting.pop(0)
                tasks[asyncio.create_task(_one(run, folder, going))] = run
            if not tasks:
                return going.done
            show(going)
            over, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for task in over:
                tasks.pop(task)
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(run: Run, folder: Path, going: Going) -> None:
    """A run in its process. Raises StudyError with the last lines that it printed."""
    command = ["-m", "bench.convergence.run", str(folder), json.dumps(asdict(run)), "1"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    going.running[run] = 0
    said: list[str] = []
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            words = line.decode(errors="replace").split()
            if len(words) == 2 and words[0] == "tokens":
                going.add(int(words[1]) - going.running[run])
                going.running[run] = int(words[1])
            else:
                said.append(line.decode(errors="replace"))
        if await process.wait():
            raise StudyError(f"{run.name} ended with an error:\n{''.join(said[-ERROR_LINES:])}")
        going.add(run.tokens - going.running[run])
    finally:
        del going.running[run]
        if process.returncode is None:
            process.kill()
            await process.wait()
