"""Trust: takes the evidence of each round, and decides which nodes count, how much, and which are refused.

    newcomer ──counted rounds──▶ full weight          weight 1/8 to 1, relative to the node with the most
        │                            │
        └──────── S ≥ ALARM ─────────┤
                                     ▼
        ┌────────── S = 0 ────── suspected            weight 0; its votes are still observed
        ▼                            │    ▲
    newcomer                  S ≥ 2·ALARM │ the ban has ended
                                     ▼    │
                                  banned              refused for 15 s · 2ⁿ, n earlier bans

An event that hits many nodes together is the network's or the coordinator's fault, so silence, differing parameters,
unreadable payloads and empty contributions of more than OUTAGE_SHARE of the nodes count against nobody.

This module uses no clock, no network and no disk: `now` comes in, and decisions with their reasons come out.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from thinwire_coordinator.hall.events import Cause, Verdict
from thinwire_coordinator.star.trust.evidence import Audited, Decision, RoundEvidence, Shown, because
from thinwire_coordinator.star.trust.sequential import (
    AUDITS_INFORMATIVE,
    BINARY,
    INFORMATIVE,
    added,
    against_step,
    audit_step,
    noise_step,
)
from thinwire_coordinator.star.trust.standing import Standing
from thinwire_coordinator.star.trust.weights import FOUNDERS_ROUNDS, FULL_AFTER, NEWCOMER, weights_of

OUTAGE_SHARE = 1 / 3
"""If more than this share of the nodes of a round (and at least two) fail in the same way, none of them is blamed."""
PRESENT_ROUNDS = 16
"""A node counts among the present ones for this many rounds after it last joined, attended or contributed."""
NODES_MAX = 65_536
"""Nodes that are remembered. Beyond that, those are forgotten that were seen longest ago, banned ones last."""
AUDITS_KEPT = 64
"""The newest audits of anybody; their median says what is typical."""
AUDITS_MIN = 8
DOUBT = 4.6
"""S of noise or of audits from which on a node is audited before others: hostile is then 100 times as likely."""

_EXCUSED_TOGETHER = (Cause.SILENCE, Cause.MISMATCH, Cause.MALFORMED, Cause.EMPTY)


class Trust:
    """The standing of every node. weight_max: the contract's full weight."""

    def __init__(self, weight_max: int = 8, kept: Iterable[Standing] = ()) -> None:
        self._weight_max = weight_max
        self._standings: OrderedDict[str, Standing] = OrderedDict((one.node, one) for one in kept)
        self._round = 0
        self._turn = 0  # the newest round that has opened: what is observed later of an earlier one moves no turn
        self._audits: deque[float] = deque(maxlen=AUDITS_KEPT)
        self._weights: dict[str, float] = {}
        self._weigh_at: float | None = None  # set while `_weights` is out of date
        self._settled = any(_shows_settled(one) for one in self._standings.values())
        self._settled_since: int | None = None  # the first round after which a node had its full weight

    # the past of a node

    def of(self, node: str) -> Standing:
        """Return the standing of a node. A node that was never seen is a newcomer."""
        found = self._standings.get(node)
        if found is None:
            found = self._standings[node] = Standing(node, seen=self._round, founder=not self._settled)
            self._forget()
        return found

    @property
    def standings(self) -> Mapping[str, Standing]:
        return self._standings

    def arrived(self, node: str, group: str, now: float) -> None:
        """A node joins. group: of its address; empty if addresses say nothing."""
        standing = self.of(node)
        standing.group, standing.seen = group, self._round
        self._weigh(now)

    def opened(self, number: int, nodes: Iterable[str], now: float) -> None:
        """A round opens. nodes: those that attend it. They are present, even if they contribute much later."""
        self._turn = max(self._turn, number)
        for node in nodes:
            self.of(node).seen = number
        self._weigh(now)

    def banned_for(self, node: str, now: float) -> float:
        """For how many more seconds a node is refused; 0 if it is not."""
        found = self._standings.get(node)
        return max(0.0, found.banned_until - now) if found else 0.0

    def is_established(self, node: str, now: float) -> bool:
        """Whether a node has earned its full weight and has lost none of it."""
        known = self._standings.get(node)
        return known is not None and known.counted >= FULL_AFTER and not known.suspected and known.banned_until <= now

    def pardon(self, node: str, now: float) -> None:
        """The organizer overrules: everything against a node is forgotten."""
        self.of(node).pardon()
        self._weigh(now)

    # weights

    def weight(self, node: str) -> float:
        """The trust in a node, 0 to 1. Somebody who was never seen is a newcomer. One that has been away keeps what is
        known against it, and its full weight if it had earned that. If it has not, the bound for its network does not
        know of it: it weighs nothing in the round in which it is back, and counts from the next one on."""
        if node in self.weights:
            return self.weights[node]
        known = self._standings.get(node)
        if known is not None and known.suspected:
            return 0.0
        if not self.weights or (known is not None and known.counted >= FULL_AFTER):
            return 1.0
        return 0.0 if known is not None and known.group else NEWCOMER

    @property
    def weights(self) -> Mapping[str, float]:
        """The trust in each node that is present, 0 to 1."""
        if self._weigh_at is not None:
            present = [one for one in self._standings.values() if one.seen >= self._round - PRESENT_ROUNDS]
            founding = self._settled_since is None or self._round - self._settled_since < FOUNDERS_ROUNDS
            self._weights = weights_of(present, self._weigh_at, self._turn, self._weight_max, founding=founding)
            self._weigh_at = None
        return self._weights

    def _weigh(self, now: float) -> None:
        """Have the weights computed when they are next read: a thousand nodes may join before that."""
        self._weigh_at = now

    # evidence

    def observe(self, evidence: RoundEvidence, now: float) -> tuple[Mapping[str, float], tuple[Decision, ...]]:
        """Add the evidence of a round. Returns the weights of the next round, by node, and the decisions."""
        median = _median_agreement(evidence.shown, self.weight)
        self._round = max(self._round, evidence.round)
        self._turn = max(self._turn, self._round)
        touched: set[str] = set()
        self._observe_votes(evidence.shown, median)
        self._observe_failures(evidence)
        self._observe_audits(evidence.audits)
        for node, wrong in evidence.held_out:
            self.of(node).add(Cause.HELD_OUT, BINARY[Cause.HELD_OUT].step(wrong))
        touched.update(one.node for one in evidence.shown)
        touched.update(evidence.silent, evidence.mismatched, evidence.malformed)
        touched.update(one.node for one in evidence.audits)
        touched.update(node for node, _ in evidence.held_out)
        decisions = [self._decide(self.of(node), evidence, median, now) for node in sorted(touched)]
        self._count(evidence.shown)
        if self._settled and self._settled_since is None:
            self._settled_since = self._round
        self._weigh(now)
        return self.weights, tuple(one for made in decisions for one in made)

    def _observe_votes(self, shown: Sequence[Shown], median: float) -> None:
        for one in shown:
            standing = self.of(one.node)
            standing.seen = self._round
            standing.add(Cause.COPY, BINARY[Cause.COPY].step(bool(one.copy_of)))
            standing.add(Cause.REPEAT, BINARY[Cause.REPEAT].step(one.repeats))
            if one.agreement is not None and median >= INFORMATIVE:
                standing.add(Cause.NOISE, noise_step(one.agreement, median))
                standing.add(Cause.AGAINST, against_step(one.agreement, median))

    def _observe_failures(self, evidence: RoundEvidence) -> None:
        sent = {one.node for one in evidence.shown}
        came = sent | {*evidence.mismatched, *evidence.malformed}
        failed = {
            Cause.SILENCE: (set(evidence.silent), came | set(evidence.silent)),
            Cause.MISMATCH: (set(evidence.mismatched), came),
            Cause.MALFORMED: (set(evidence.malformed), came),
            Cause.EMPTY: ({one.node for one in evidence.shown if one.empty}, sent),
        }
        for cause in _EXCUSED_TOGETHER:
            nodes, of = failed[cause]
            if len(nodes) >= 2 and len(nodes) > OUTAGE_SHARE * len(of):
                continue
            for node in sorted(of):
                self.of(node).add(cause, BINARY[cause].step(node in nodes))

    def _observe_audits(self, audits: Sequence[Audited]) -> None:
        typical = statistics.median(self._audits) if len(self._audits) >= AUDITS_MIN else 0.0
        for one in audits:
            standing = self.of(one.node)
            standing.audits += 1
            if typical >= AUDITS_INFORMATIVE:
                step = audit_step(one.z, typical)
                standing.add(Cause.AUDIT, step)
                standing.vouched = added(standing.vouched, -step)
        self._audits.extend(one.z for one in sorted(audits, key=lambda one: one.node))

    def _count(self, shown: Sequence[Shown]) -> None:
        for one in shown:
            standing = self.of(one.node)
            if one.merged and not standing.suspected:
                standing.count()
                self._settled = self._settled or standing.counted >= FULL_AFTER

    # decisions

    def _decide(self, standing: Standing, evidence: RoundEvidence, median: float, now: float) -> list[Decision]:
        made = []

        def decide(verdict: Verdict, cause: Cause, reason: str) -> None:
            made.append(Decision(standing.node, self._round, verdict, cause, reason, standing.banned_until))

        for cause in Cause:
            if cause not in standing.suspected and standing.alarmed(cause):
                reason = because(cause, standing.node, evidence, median)
                standing.suspect(cause, reason)
                decide(Verdict.SUSPECTED if standing.suspected else Verdict.LOWERED, cause, reason)
            elif cause in standing.suspected and standing.is_cleared(cause):
                del standing.suspected[cause]
                if not standing.suspected:
                    decide(Verdict.CLEARED, cause, "what it sends is in order again")
        worst = next((cause for cause in standing.suspected if standing.bannable(cause)), None)
        if worst is not None and standing.banned_until <= now:
            length_s = standing.ban(now)
            decide(Verdict.BANNED, worst, f"{standing.suspected[worst]}, again and again; refused for {length_s:.0f} s")
        return made

    # audits

    def whom_to_audit(self, nodes: Sequence[str], draw: float) -> str:
        """The node to audit next, of those given. Nodes that are suspected or doubted come first, then those audited
        least; the rest is drawn. draw: 0 to 1."""

        def urgency(node: str) -> tuple[bool, float]:
            standing = self.of(node)
            doubted = standing.evidence.get(Cause.NOISE, 0.0) + standing.evidence.get(Cause.AUDIT, 0.0)
            return bool(standing.suspected) or doubted >= DOUBT, -standing.audits

        ordered = sorted(nodes)
        most = max(urgency(node) for node in ordered)
        first = [node for node in ordered if urgency(node) == most]
        return first[min(len(first) - 1, int(draw * len(first)))]

    def _forget(self) -> None:
        if len(self._standings) <= NODES_MAX:
            return
        ordered = sorted(self._standings.values(), key=lambda one: (one.bans > 0, one.seen))
        for one in ordered[: len(ordered) - NODES_MAX * 7 // 8]:
            del self._standings[one.node]


def _median_agreement(shown: Sequence[Shown], weight: Callable[[str], float]) -> float:
    """The agreement of the median node that counts; 0 if that cannot be said."""
    found = [
        one.agreement
        for one in shown
        if one.agreement is not None and not (one.copy_of or one.repeats) and weight(one.node) > 0
    ]
    return statistics.median(found) if len(found) >= 3 else 0.0


def _shows_settled(kept: Standing) -> bool:
    """Whether a standing of an earlier process shows that a node had its full weight then."""
    return kept.counted >= FULL_AFTER or not kept.founder
