"""Shows how the work is going: a line now and then on standard error."""

from __future__ import annotations

import sys
import time

from thinwire_common.units import human_bytes, human_seconds

LINE_EVERY_S = 10.0


class Shown:
    """Counts documents, tokens and bytes of text; `total_bytes` is of the files to read."""

    def __init__(self) -> None:
        self._label = ""
        self._total: int | None = None
        self._documents = self._tokens = self._text = 0
        self._began = self._said = time.monotonic()

    def begin(self, label: str, total_bytes: int | None) -> None:
        """Begin a part of the work. total_bytes: None if it is not known."""
        self._label, self._total = label, total_bytes
        self._documents = self._tokens = self._text = 0
        self._began = self._said = time.monotonic()
        self.say(label if total_bytes is None else f"{label}: {human_bytes(total_bytes)}")

    def count(self, read_bytes: int, documents: int, tokens: int, text_bytes: int) -> None:
        """More documents were tokenized. read_bytes: of the present part so far, before decompression."""
        self._documents += documents
        self._tokens += tokens
        self._text += text_bytes
        if (now := time.monotonic()) - self._said < LINE_EVERY_S:
            return
        self._said, elapsed_s = now, now - self._began
        line = f"{self._label}: {self._documents:,} documents, {self._tokens:,} tokens, "
        line += f"{human_bytes(self._text / elapsed_s)}/s"
        if self._total and read_bytes:
            left_s = elapsed_s * max(0, self._total - read_bytes) / read_bytes
            line += f", {read_bytes / self._total:.0%}, {human_seconds(left_s)} left"
        self.say(line)

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
