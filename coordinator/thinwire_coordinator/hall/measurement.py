"""Shares out one measurement of the held-out losses among nodes, and cross-checks their answers.

A coordinator without a GPU cannot follow a large model alone, but the nodes hold the same parameters. A node may be
wrong, lie, be slow or disappear, so one answer is not enough. If every node measured everything, each node would spend
as much time as the coordinator alone. So the samples are divided into parts, and each part is given to two nodes:

    the two answers agree            their mean counts
    they differ                      the coordinator measures the part, and reports the answers that are wrong
    a node leaves, or is too slow    another node is asked
    nobody is left to ask            the coordinator measures the part itself, and its own result counts

Only nodes that have earned trust are to be passed in: identities cost nothing, and two of them agree on anything.

Nothing here reads a clock or sends anything. Callers pass `now` (seconds on any monotonic clock), and carry out the
actions that the methods return.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from thinwire_proto.contract import ModelSpec
from thinwire_proto.task import HeldOutSet, task_of

MeasuredBy = Literal["coordinator", "nodes", "both"]
"""The party that measured a held-out loss. both: the coordinator measured the parts that nodes did not."""
SAMPLES = 64
"""Samples of each held-out set that are measured, unless the organizer says otherwise."""
PART_SAMPLES = 8
"""Samples of a part."""
OPINIONS = 2
"""Nodes whose answers are needed, and have to be equal."""
ASKED_MAX = 5
"""Nodes that are asked for one part before the coordinator measures it."""
TOLERANCE = 1e-4
"""Relative difference of two losses that counts as equal.

Both are computed in float32, but devices, numbers of threads and batch sizes add in different orders. On one machine,
batches of 1, 3 and 8 and one or two threads change the loss of byte-1m and byte-10m by at most 7e-8 of it. Other
devices get the room of three more digits. bfloat16 changes it by 1.2e-4 and more, so nodes never use it here."""
BASE_TOLERANCE = 2e-2
"""The same, where each node chooses the bits of the model's frozen base: twice the largest difference of a part.

With 16, 8 and 4 bits, parts of a small trained Llama differ from those in float32 by at most 0.08, 0.14 and 1.04%
(`python -m bench.adversary.base_bits`). A liar stays undetected within this tolerance, and then moves a part's loss by
half of it."""
SMALLEST = 1e-2
"""A loss below this is compared by its absolute difference, the tolerance times SMALLEST."""
PREFERENCES_SMALLEST = math.log(2)
"""The same for preferences: the loss of an adapter that changes nothing. Their loss is small where the margin is large,
and it moves as the margin does: a base in 4 bits moves that of a part by 2.6% of 0.19, and by 5e-3 at most."""


@dataclass(frozen=True)
class Part:
    """A part of a held-out set at a step: `count` of its `spread` evenly spread samples, from the `start`-th on."""

    step: int
    name: str
    spread: int
    start: int
    count: int


def parts_of(step: int, sets: Iterable[HeldOutSet], samples: int) -> tuple[Part, ...]:
    """The parts of a measurement of up to `samples` samples of each set."""
    parts = []
    for found in sets:
        spread = min(samples, found.samples)
        for start in range(0, spread, PART_SAMPLES):
            parts.append(Part(step, found.name, spread, start, min(PART_SAMPLES, spread - start)))
    return tuple(parts)


@dataclass(frozen=True)
class Tell:
    """The parts of this node have changed; announce them."""

    node: str


@dataclass(frozen=True)
class MeasureHere:
    """The coordinator has to measure this part; see `Measurement.measured_here`."""

    part: Part


@dataclass(frozen=True)
class Judged:
    """The outcome of a part that was given to a node.

    differed: from what the coordinator measured itself. loss: the node's answer; None without one. accepted: the loss
    that counts; None if that is not known.
    """

    node: str
    part: Part
    result: Literal["agreed", "differed", "unanswered"]
    loss: float | None = None
    accepted: float | None = None


@dataclass(frozen=True)
class SetMeasured:
    """All parts of a set are measured. loss: mean over the tokens that count, in nats per token."""

    step: int
    name: str
    loss: float
    measured_by: MeasuredBy


Action = Tell | MeasureHere | Judged | SetMeasured


@dataclass
class _Progress:
    """The progress of one part.

    open: deadlines of the nodes whose answers are awaited. asked: all nodes that were ever asked.
    """

    open: dict[str, float] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    answers: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    here: bool = False
    measured_here: bool = False


class Measurement:
    """One measurement.

    weights: of the mean loss of each part beside those of the others of its set; by default its samples. nodes: the
    nodes that can measure; with fewer than two, the coordinator measures everything. answer_s: how long a
    node may take between two answers. randomness: decides who gets which part, so that no node can choose whom it is
    compared with. tolerance: see `tolerance_of`. smallest: see `smallest_of`.
    """

    def __init__(
        self,
        step: int,
        parts: Sequence[Part],
        nodes: Iterable[str],
        answer_s: float,
        randomness: random.Random,
        weights: Mapping[Part, int] = {},
        tolerance: float = TOLERANCE,
        smallest: float = SMALLEST,
    ) -> None:
        self.step = step
        self._smallest = smallest
        self._tolerance = tolerance
        self._nodes = sorted(nodes)
        randomness.shuffle(self._nodes)
        if len(self._nodes) < OPINIONS:
            self._nodes = []
        self._answer_s = answer_s
        self._weights = {part: weights.get(part, part.count) for part in parts}
        self._random = randomness
        self._progress = {part: _Progress() for part in parts}
        self._open_to: dict[str, set[Part]] = {node: set() for node in self._nodes}
        self._answered: set[str] = set()
        self._slow: set[str] = set()

    def begin(self, now: float) -> list[Action]:
        return [action for part in self._progress for action in self._go_on(part, now)]

    # state

    @property
    def complete(self) -> bool:
        return all(progress.loss is not None for progress in self._progress.values())

    @property
    def waits_for_coordinator(self) -> bool:
        return any(progress.here and progress.loss is None for progress in self._progress.values())

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` is due next; None if no answer is awaited."""
        return min((at for progress in self._progress.values() for at in progress.open.values()), default=None)

    @property
    def participants(self) -> list[str]:
        """The nodes that may be asked, now or later."""
        return list(self._nodes)

    @property
    def silent(self) -> set[str]:
        """Nodes that did not answer in time, and have answered nothing else either."""
        return self._slow - self._answered

    def open_to(self, node: str) -> list[Part]:
        """The parts whose loss is awaited from a node, in a fixed order."""
        wanted = self._open_to.get(node, set())
        return [part for part in self._progress if part in wanted]

    # events

    def why_refused(self, node: str, part: Part, loss: float) -> str:
        """Return the reason for which a node's answer is refused, in words; empty if it is not."""
        if part not in self._open_to.get(node, set()):
            return f"{_in_words(part)} is not assigned to this session, or was given to another node meanwhile"
        if not is_plausible(loss):
            return f"{_in_words(part)}: a loss must be finite and at most {LOSS_MAX:g}; this one is {loss}"
        return ""

    def answer(self, node: str, part: Part, loss: float, now: float) -> list[Action]:
        """Take an answer that `why_refused` does not refuse."""
        self._withdraw(node, part)
        self._answered.add(node)
        self._progress[part].answers[node] = loss
        for other in self._open_to[node]:
            self._progress[other].open[node] = now + self._answer_s  # it measures one part after the other
        return self._go_on(part, now)

    def decline(self, node: str, part: Part, now: float) -> list[Action]:
        """A node does not answer; another one is asked."""
        if part not in self._open_to.get(node, set()):
            return []
        self._withdraw(node, part)
        return [Judged(node, part, "unanswered"), *self._go_on(part, now)]

    def leave(self, node: str, now: float) -> list[Action]:
        """A node has left, or its session has ended."""
        if node not in self._open_to:
            return []
        self._nodes.remove(node)
        found = self.open_to(node)
        for part in found:
            self._withdraw(node, part)
        del self._open_to[node]
        return [action for part in found for action in self._go_on(part, now)]

    def tick(self, now: float) -> list[Action]:
        """Give up on answers that are overdue."""
        late = [(node, part) for part, found in self._progress.items() for node, at in found.open.items() if at <= now]
        self._slow.update(node for node, _ in late)
        return [action for node, part in late for action in (Tell(node), *self.decline(node, part, now))]

    def measured_here(self, part: Part, loss: float) -> list[Action]:
        """Take the coordinator's own result. It counts even if it is not finite."""
        progress = self._progress[part]
        if progress.loss is not None:
            return []
        progress.measured_here = True
        return list(self._accept(part, loss))

    # decisions

    def _go_on(self, part: Part, now: float) -> list[Action]:
        """Accept a loss if the answers agree; otherwise ask more nodes, or the coordinator."""
        progress = self._progress[part]
        if progress.loss is not None or progress.here:
            return []
        answers = list(progress.answers.values())
        if len(answers) >= OPINIONS:
            one, other = answers
            agreed = agree(one, other, self._tolerance, self._smallest)
            return list(self._accept(part, (one + other) / OPINIONS)) if agreed else self._measure_here(part)
        actions: list[Action] = []
        for _ in range(OPINIONS - len(answers) - len(progress.open)):
            if (node := self._next_for(progress)) is None:
                return [*actions, *self._measure_here(part)]
            progress.asked.add(node)
            progress.open[node] = now + self._answer_s
            self._open_to[node].add(part)
            actions.append(Tell(node))
        return actions

    def _measure_here(self, part: Part) -> list[Action]:
        self._progress[part].here = True
        return [MeasureHere(part)]

    def _next_for(self, progress: _Progress) -> str | None:
        """The node to ask next: one that was not asked yet and is not silent, with the fewest parts to measure."""
        others = [node for node in self._nodes if node not in progress.asked | self.silent]
        if not others or len(progress.asked) >= ASKED_MAX:
            return None
        least = min(len(self._open_to[node]) for node in others)
        return self._random.choice([node for node in others if len(self._open_to[node]) == least])

    def _accept(self, part: Part, loss: float) -> Iterator[Action]:
        progress = self._progress[part]
        progress.loss = loss
        for node in list(progress.open):
            self._withdraw(node, part)
            yield Tell(node)
        if math.isfinite(loss):  # otherwise the coordinator could not measure, or the run has diverged
            for node, found in progress.answers.items():
                agreed = agree(found, loss, self._tolerance, self._smallest)
                yield Judged(node, part, "agreed" if agreed else "differed", found, loss)
        of_set = {other: found for other, found in self._progress.items() if other.name == part.name}
        if all(found.loss is not None for found in of_set.values()):
            total = sum((found.loss or 0.0) * self._weights[other] for other, found in of_set.items())
            mean = total / sum(self._weights[other] for other in of_set)
            yield SetMeasured(self.step, part.name, mean, _by([found.measured_here for found in of_set.values()]))

    def _withdraw(self, node: str, part: Part) -> None:
        self._progress[part].open.pop(node, None)
        self._open_to[node].discard(part)


def agree(one: float, other: float, tolerance: float = TOLERANCE, smallest: float = SMALLEST) -> bool:
    """Whether the relative difference of two losses is within a tolerance; that of smaller ones is relative to
    `smallest`."""
    return abs(one - other) <= tolerance * max(abs(one), abs(other), smallest)


def tolerance_of(model: ModelSpec) -> float:
    """The relative difference of two losses of a model that counts as equal."""
    return BASE_TOLERANCE if task_of(model).blobs() else TOLERANCE


def smallest_of(sets: Iterable[HeldOutSet]) -> float:
    """The loss below which losses on these sets are compared by their absolute difference."""
    return PREFERENCES_SMALLEST if any(found.unit == "pair" for found in sets) else SMALLEST


def _by(here: list[bool]) -> MeasuredBy:
    if not any(here):
        return "nodes"
    return "coordinator" if all(here) else "both"


def _in_words(part: Part) -> str:
    last = part.start + part.count - 1
    return f"samples {part.start} to {last} of {part.spread} of the held-out set {part.name!r} at step {part.step}"


LOSS_MAX = 1e6
"""A larger loss, in nats per token, is refused or passed over."""


def is_plausible(loss: float) -> bool:
    """Whether a loss may be one: finite, and at most LOSS_MAX."""
    return math.isfinite(loss) and abs(loss) <= LOSS_MAX


def weighted_median(weighed: Iterable[tuple[float, float]]) -> float:
    """The median of values with weights above 0. Between two values, each with exactly half of the weight, it is their
    mean, so two equal nodes show their mean. Not a number without any."""
    pairs = sorted((value, weight) for value, weight in weighed if weight > 0)
    half, below = sum(weight for _, weight in pairs) / 2, 0.0
    for number, (value, weight) in enumerate(pairs):
        below += weight
        if below > half:
            return value
        if below == half:
            return (value + pairs[number + 1][0]) / 2
    return math.nan
