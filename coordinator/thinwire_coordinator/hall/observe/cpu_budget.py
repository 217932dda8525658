"""Limits the processor time of expensive measurements and of answers to readers, which it keeps.

Many browsers ask the same question at the same time, so an answer is made once for all of them. Two connections that
ask without a pause would still take most of the event loop: with 200 nodes, rounds took two to eight times as long. So
new answers get a share of one core, after a burst that loading a page needs. One network gets at most half of that, so
that whoever asks ever new questions leaves the rest to others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

SHARE = 1 / 200


class CpuBudget:
    """Limits an expensive measurement to 0.5% of a core, and to one run every `least_s` seconds.

    `now` is in seconds of a monotonic clock.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._not_before = float("-inf")

    def due(self, now: float) -> bool:
        """Whether to measure now. After it has returned True, it returns False until `took` is called."""
        if now < self._not_before:
            return False
        self._not_before = float("inf")
        return True

    def took(self, now: float, cpu_s: float) -> None:
        """Record that the measurement that began at `now` used `cpu_s` seconds of processor time."""
        self._not_before = now + max(self._least_s, cpu_s / SHARE)


class CpuBucket:
    """Limits processor time by a token bucket, which begins full.

    share: of one core. burst_s: processor time that may be used at once, after a pause.

    The cost of a use is known only afterwards, so the last use may overdraw the bucket.

    `now` is in seconds of a monotonic clock.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share, self._burst_s = share, burst_s
        self._left_s = burst_s
        self._left_at = float("-inf")

    def has_some(self, now: float) -> bool:
        """Whether processor time is left."""
        self._left_s = min(self._burst_s, self._left_s + self._share * (now - self._left_at))
        self._left_at = now
        return self._left_s > 0

    def used(self, cpu_s: float) -> None:
        """Take what a use has cost."""
        self._left_s -= cpu_s


KEPT_MAX = 64
"""Maximum number of kept answers."""
ANSWERS_SHARE, ANSWERS_BURST_S = 1 / 10, 0.5
"""Processor time for making answers; one network gets half of it."""
NETWORKS_MAX = 1024
"""Networks whose processor time is known. The one that asked the longest ago is forgotten first."""


class KeptAnswers:
    """Answers by question. kept_s: how long each is the same for all readers. cpu_s: processor time of this thread."""

    def __init__(self, kept_s: float, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._kept_s = kept_s
        self._cpu_s = cpu_s
        self._kept: dict[str, tuple[float, bytes]] = {}  # when it was made, and the answer; the oldest first
        self._bucket = CpuBucket(ANSWERS_SHARE, ANSWERS_BURST_S)
        self._of_networks: OrderedDict[str, CpuBucket] = OrderedDict()

    def answer(self, question: str, now: float, make: Callable[[], bytes], network: str | None = None) -> bytes | None:
        """The answer, from `make` if it is not kept. If the share is used up: an older one, or None if there is none.

        now: in seconds of a monotonic clock. network: whose share it is, too; None: nobody's."""
        made_at, kept = self._kept.get(question, (float("-inf"), None))
        if kept is not None and now - made_at <= self._kept_s:
            return kept
        buckets = [self._bucket] if network is None else [self._bucket, self._bucket_of(network)]
        if not all(bucket.has_some(now) for bucket in buckets):
            return kept
        began = self._cpu_s()
        made = make()
        took_s = self._cpu_s() - began
        for bucket in buckets:
            bucket.used(took_s)
        self._kept.pop(question, None)
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[question] = now, made
        return made

    def _bucket_of(self, network: str) -> CpuBucket:
        found = self._of_networks.setdefault(network, CpuBucket(ANSWERS_SHARE / 2, ANSWERS_BURST_S / 2))
        self._of_networks.move_to_end(network)
        if len(self._of_networks) > NETWORKS_MAX:
            self._of_networks.popitem(last=False)
        return found
