"""The most memory of this process that no other has and no file holds, while something is done. Linux only."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVERY_S = 0.001


class PrivateMemory:
    """extra_bytes: more than at the beginning, at most."""

    def __init__(self) -> None:
        self.extra_bytes = 0


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def private_memory() -> Iterator[PrivateMemory]:
    """Look every millisecond."""
    gc.collect()
    found, before, is_over = PrivateMemory(), _anonymous_bytes(), threading.Event()

    def look() -> None:
        while not is_over.wait(EVERY_S):
            found.extra_bytes = max(found.extra_bytes, _anonymous_bytes() - before)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        is_over.set()
        looking.join()
        found.extra_bytes = max(found.extra_bytes, _anonymous_bytes() - before)
