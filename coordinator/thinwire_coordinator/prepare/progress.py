"""Shows how the work is going: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from thinwire_common.units import human_bytes, human_seconds

LINE_EVERY_S = 10.0


class Shown:
    """Progress on standard error. Counts documents, tokens and bytes of text; `total_bytes` is of the files to read."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._is_terminal = console.is_terminal
        self._task: TaskID | None = None
        self._label = ""
        self._restart(None)

    def __enter__(self) -> Shown:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, label: str, total_bytes: int | None) -> None:
        """Begin a part of the work. total_bytes: None if it is not known."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(label, total=total_bytes, counts="")
        self._label = label
        self._restart(total_bytes)
        if not self._is_terminal:
            self.say(label if total_bytes is None else f"{label}: {human_bytes(total_bytes)}")

    def count(self, read_bytes: int, documents: int, tokens: int, text_bytes: int) -> None:
        """More documents were tokenized. read_bytes: of the present part so far, before decompression."""
        self._read = read_bytes
        self._documents += documents
        self._tokens += tokens
        self._text += text_bytes
        self._show()

    def say(self, line: str) -> None:
        """Show a line, above the bar."""
        if self._is_terminal:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def _restart(self, total: int | None) -> None:
        self._total = total
        self._read = self._documents = self._tokens = self._text = 0
        self._began = self._said = time.monotonic()

    def _show(self) -> None:
        if self._task is None:
            return
        if self._is_terminal:
            self._bar.update(self._task, completed=self._read, counts=self._counts())
        elif (now := time.monotonic()) - self._said >= LINE_EVERY_S:
            self._said = now
            self.say(f"{self._label}: {self._counts()}{self._left(now)}")

    def _counts(self) -> str:
        elapsed_s = max(time.monotonic() - self._began, 1e-3)
        rate = human_bytes(self._text / elapsed_s)
        return f"{self._documents:,} documents, {self._tokens:,} tokens, {rate}/s"

    def _left(self, now: float) -> str:
        if not self._total or not self._read:
            return ""
        left_s = (now - self._began) * max(0, self._total - self._read) / self._read
        return f", {self._read / self._total:.0%}, {human_seconds(left_s)} left"
