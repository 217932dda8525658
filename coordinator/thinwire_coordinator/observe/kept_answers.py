"""Keeps answers to readers, and bounds the processor time that making new ones takes.

Many browsers ask the same question at the same time, so an answer is made once for all of them. Two connections that
ask without a pause would still take most of the event loop: with 200 nodes, rounds took two to eight times as long. So
new answers get a share of one core, after a burst that loading a page needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from thinwire_coordinator.observe.cpu_budget import CpuBucket, CpuRate

KEPT_MAX = 64
"""Maximum number of kept answers."""
RATE = CpuRate(share=1 / 10, burst_s=0.5)
"""Processor time for making answers."""


class KeptAnswers:
    """Answers by question. kept_s: how long each is the same for all readers. cpu_s: processor time of this thread."""

    def __init__(self, kept_s: float, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._kept_s = kept_s
        self._cpu_s = cpu_s
        self._kept: dict[str, tuple[float, bytes]] = {}  # when it was made, and the answer
        self._bucket = CpuBucket(RATE)

    def answer(self, question: str, now: float, make: Callable[[], bytes]) -> bytes | None:
        """The answer, from `make` if it is not kept. If the share is used up: an older one, or None if there is none.

        now: in seconds of a monotonic clock."""
        made_at, kept = self._kept.get(question, (float("-inf"), None))
        if kept is not None and now - made_at <= self._kept_s:
            return kept
        if not self._bucket.has_some(now):
            return kept
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        began = self._cpu_s()
        made = make()
        self._bucket.used(self._cpu_s() - began)
        self._kept[question] = now, made
        return made
