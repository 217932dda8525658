"""Runs a study: parallel processes, with a view of their progress and the remaining time."""

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
from bench.convergence.run import RESULTS, Result, Run, read, settings_of

ERROR_LINES = 15


class StudyError(Exception):
    """A run failed, or the folder holds the results of another study."""


class Progress:
    """The progress of a study, for the view: current and remaining runs, results, and tokens trained since
    the start."""

    def __init__(self) -> None:
        self.running: dict[Run, int] = {}
        self.left: list[Run] = []
        self.done: list[Result] = []
        self._began = time.monotonic()
        self._tokens = 0

    def add(self, tokens: int) -> None:
        self._tokens += tokens

    def left_s(self) -> float | None:
        """Seconds until all known runs are finished; None before anything is measured."""
        passed = time.monotonic() - self._began
        if not self._tokens or passed < 1:
            return None
        left = sum(run.tokens for run in self.left) - sum(self.running.values())
        return max(0.0, left) * passed / self._tokens


def results_in(folder: Path, study: Study) -> list[Result]:
    """The existing results of this study. Raises StudyError for results on other texts, or of arms with other
    settings."""
    try:
        results = read(folder)
    except ValueError as error:
        raise StudyError(str(error)) from None
    mine = [result for result in results if result.run.size == study.size and result.run.arm in study.arms]
    if len({result.corpus for result in mine}) > 1:
        raise StudyError(
            f"{folder} has results on different texts (other versions of Python's library); use another --into"
        )
    for result in mine:
        now = settings_of(ARMS[result.run.arm])
        changed = [name for name, value in result.settings.items() if value != now.get(name)]
        if changed:
            raise StudyError(
                f"{folder / RESULTS}: {result.run.name} was run with another {', '.join(changed)} "
                "than the arm has now; remove its line, or use another --into"
            )
    return mine


async def run_all(study: Study, folder: Path, jobs: int, show: Callable[[Progress], None]) -> list[Result]:
    """Run the missing runs, `jobs` at a time with one thread each. An interrupted run goes on from its checkpoint."""
    progress = Progress()
    tasks: dict[asyncio.Task[None], Run] = {}
    try:
        while True:
            progress.done = results_in(folder, study)
            waiting = [run for run in next_runs(study, progress.done) if run not in tasks.values()]
            progress.left = runs_at_least(study, progress.done)
            while waiting and len(tasks) < jobs:
                run = waiting.pop(0)
                tasks[asyncio.create_task(_one(run, folder, progress))] = run
            if not tasks:
                return progress.done
            show(progress)
            finished, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                tasks.pop(task)
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(run: Run, folder: Path, progress: Progress) -> None:
    """Run one process. Raises StudyError with the last lines that it printed."""
    command = ["-m", "bench.convergence.run", str(folder), json.dumps(asdict(run)), "1"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    progress.running[run] = 0
    output: list[str] = []
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            words = line.decode(errors="replace").split()
            if len(words) == 2 and words[0] in ("resumed", "tokens"):
                if words[0] == "tokens":
                    progress.add(int(words[1]) - progress.running[run])
                progress.running[run] = int(words[1])
            else:
                output.append(line.decode(errors="replace"))
        if await process.wait():
            raise StudyError(f"{run.name} ended with an error:\n{''.join(output[-ERROR_LINES:])}")
        progress.add(run.tokens - progress.running[run])
    finally:
        del progress.running[run]
        if process.returncode is None:
            process.kill()
            await process.wait()
