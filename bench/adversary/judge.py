"""The coordinator's trust, applied to the rounds of a scene."""

from __future__ import annotations

from collections.abc import Mapping

from thinwire_coordinator.hall.events import Verdict
from thinwire_coordinator.star.trust.ballots import Ballot, Secret, digest_of
from thinwire_coordinator.star.trust.comparison import Comparer
from thinwire_coordinator.star.trust.evidence import Decision, RoundEvidence
from thinwire_coordinator.star.trust.trust import Trust
from thinwire_proto.exact.votes import Votes

ROUND_S = 30.0
"""Length of a round; bans are measured in seconds."""


class Judge:
    """Weighs nodes as a coordinator does. weight_max: the contract's full weight."""

    def __init__(self, nodes: int, weight_max: int, seed: int) -> None:
        self._trust = Trust(weight_max)
        self._comparer = Comparer(Secret(seed))
        self._turn = 0
        self.decisions: list[Decision] = []
        for number in range(nodes):
            self._trust.arrived(name_of(number), "", 0.0)

    @property
    def _now(self) -> float:
        return self._turn * ROUND_S

    def weight(self, number: int) -> float:
        """The trust in a node, 0 to 1; 0 if it is refused."""
        return 0.0 if self.refuses(number) else self._trust.weight(name_of(number))

    def refuses(self, number: int) -> bool:
        return self._trust.banned_for(name_of(number), self._now) > 0

    def observe(self, sent: Mapping[int, Votes], silent: list[int]) -> None:
        """Take the votes of a round, in the order in which they arrived, and the nodes that it waited for in vain."""
        ballots = [
            Ballot(
                name_of(number),
                votes.components,
                votes.positive,
                self.weight(number) > 0,
                digest_of(votes.components, votes.positive),
            )
            for number, votes in sent.items()
        ]
        shown = self._comparer.compare(ballots, self._trust.weight)
        evidence = RoundEvidence(self._turn, shown, silent=tuple(name_of(number) for number in silent))
        _, decisions = self._trust.observe(evidence, self._now)
        self.decisions += decisions
        self._turn += 1

    def bans(self, number: int) -> int:
        return sum(one.verdict is Verdict.BANNED and one.node == name_of(number) for one in self.decisions)

    def why(self, number: int) -> dict[str, str]:
        """The first reason of each cause against a node."""
        found: dict[str, str] = {}
        for one in self.decisions:
            if one.node == name_of(number) and one.verdict in (Verdict.SUSPECTED, Verdict.LOWERED):
                found.setdefault(one.cause.value, f"round {one.round}: {one.reason}")
        return found


def name_of(number: int) -> str:
    return f"{number:02}"
