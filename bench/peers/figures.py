"""Figures from the nodes' logs: pure functions of batches and times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

CurvePoint = tuple[float, int, float]
"""Seconds since the window began, tokens of all nodes since their start, held-out loss in nats a token."""


@dataclass(frozen=True)
class Batch:
    """One line of a node's log. version, digest: of the parameters, if the system promises that they are equal."""

    at_s: float
    node: int
    tokens: int
    version: int | None = None
    digest: str = ""


@dataclass(frozen=True)
class Outcome:
    """One measurement of one system: a line of the file of results. Times in seconds, bytes and tokens of the window
    before the kill.

    error: why there are no figures; empty if there are. sent_bytes, received_bytes: of a node, on average.
    gap_before_s, still_s: the longest time in which no node finished a batch, before the kill, and of the survivors
    after it. ended: the last error of a survivor that ended after the kill; empty if all went on. back_s: from the new
    start of the killed node to its first batch; None: none came. equal: whether its parameters then were those of the
    others, to the bit; None: the system does not promise it, or nothing could be compared. last_losses: of each node's
    own parameters at the end, by rank. load: average of the machine over a minute, when the window ended.
    """

    system: str
    started: str
    machine: str
    link: str
    quick: bool
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    parameters: int = 0
    seconds: float = 0.0
    tokens: int = 0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    curve: list[CurvePoint] = field(default_factory=list)
    gap_before_s: float = 0.0
    still_s: float = 0.0
    after_s: float = 0.0
    ended: str = ""
    back_s: float | None = None
    equal: bool | None = None
    last_losses: list[float] = field(default_factory=list)
    load: float = 0.0

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.seconds

    def bytes_a_token(self) -> tuple[float, float]:
        """Bytes that a node sends and receives for each token of its own."""
        own = self.tokens / self.nodes
        return self.sent_bytes / own, self.received_bytes / own


def read_batches(lines: Iterable[str]) -> list[Batch]:
    """The batches of a node's log. A killed node may have left half a line, which is skipped."""
    found = []
    for line in lines:
        try:
            found.append(Batch(**json.loads(line)))
        except ValueError:
            continue
    return found


def longest_gap_s(batches: Iterable[Batch], start_s: float, end_s: float) -> float:
    """The longest time between `start_s` and `end_s` in which no batch was finished."""
    times = sorted(batch.at_s for batch in batches if start_s < batch.at_s < end_s)
    edges = [start_s, *times, end_s]
    return max(later - earlier for earlier, later in pairwise(edges))


def tokens_until(batches: Iterable[Batch], at_s: float) -> int:
    """Tokens of all batches that were finished by then."""
    return sum(batch.tokens for batch in batches if batch.at_s <= at_s)


def back_after_s(batches: Iterable[Batch], node: int, restarted_s: float) -> float | None:
    """Seconds from a node's new start to its first batch; None if none came."""
    times = [batch.at_s for batch in batches if batch.node == node and batch.at_s > restarted_s]
    return min(times) - restarted_s if times else None


def came_back_equal(batches: Sequence[Batch], node: int, restarted_s: float) -> bool | None:
    """Whether the parameters of a node that was started again equal those of another, to the bit, in the last version
    that both have had since. None if they have none in common."""
    since = [batch for batch in batches if batch.version is not None and batch.at_s > restarted_s]
    own = {batch.version: batch.digest for batch in since if batch.node == node}
    others: dict[int | None, set[str]] = {}
    for batch in since:
        if batch.node != node:
            others.setdefault(batch.version, set()).add(batch.digest)
    common = [version for version in own if version in others]
    if not common:
        return None
    last = max(common, key=lambda version: version or 0)
    return others[last] == {own[last]}


def at_x(curve: Sequence[CurvePoint], x: float, column: int) -> float | None:
    """The loss where `column` of the curve (0: seconds, 1: tokens) is `x`, interpolated; None outside the curve."""
    for first, second in pairwise(curve):
        if first[column] <= x <= second[column]:
            width = second[column] - first[column]
            part = (x - first[column]) / width if width else 0.0
            return first[2] + part * (second[2] - first[2])
    return None
