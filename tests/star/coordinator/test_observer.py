"""Trust in a running swarm: who votes against the rest is not merged, is told why, and can come back."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from support.swarm_bench import PATIENCE_S, Bench, parts_of
from thinwire_common.within import Within
from thinwire_coordinator.hall.events import Cause, Event, NodeJudged, Verdict
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.star.round.announcements import Receipt
from thinwire_coordinator.star.round.contributions import Contribution
from thinwire_coordinator.star.trust import observer
from thinwire_coordinator.star.trust.ballots import Ballot
from thinwire_coordinator.star.trust.evidence import RoundEvidence
from thinwire_coordinator.star.trust.trust import PRESENT_ROUNDS
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS
from thinwire_proto.exact.votes import Votes
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.reasons import Reason

HONEST = "abcde"  # one more than the rounds need, since the last one to attend may miss the first round
K = 32
ROUNDS_MAX = 200
"""A judgement takes 33 to 50 rounds and more, since the secret that chooses votes is another in each run."""


class Rounds:
    """Rounds of nodes that agree in part, and of one that flips the signs of its votes."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.members: dict[str, Member] = {}
        self.judged: list[NodeJudged] = []
        self._rng = np.random.default_rng(0)
        bench.swarm.events.watchers.append(self._watch)

    def _watch(self, event: Event) -> None:
        if isinstance(event, NodeJudged):
            self.judged.append(event)

    async def join(self, letters: str) -> None:
        for letter in letters:
            self.members[letter] = self.bench.join(letter)
            self.bench.swarm.observer.joined(self.members[letter].node_id, "")
        for member in self.members.values():
            await self.bench.attend(member)

    async def play(self, flips: str) -> dict[str, Receipt]:
        """A round in which everybody contributes."""
        tiles, size = self.bench.replica.layout.matrix_tiles, MATRIX_COMPONENTS
        popular = [tile * size + self._rng.choice(size, 2 * K, replace=False) for tile in range(tiles)]
        signs = self._rng.random(tiles * size) < 0.5
        payloads = {}
        for letter in self.members:
            components = np.sort(np.concatenate([self._rng.choice(some, K, replace=False) for some in popular]))
            positive = np.where(self._rng.random(len(components)) < 0.75, signs[components], ~signs[components])
            votes = Votes(components, ~positive if letter in flips else positive)
            payloads[letter] = encode_votes(votes, self.bench.replica.layout)
        nonce = self.bench.swarm.fingerprints.at(self.bench.current.round.step)
        assert nonce is not None
        await asyncio.shield(nonce.fingerprint)
        sent = {letter: self.contribute(letter, payload) for letter, payload in payloads.items()}
        receipts = await asyncio.wait_for(asyncio.gather(*sent.values()), PATIENCE_S)
        await self.settle()
        return dict(zip(sent, receipts, strict=True))

    async def settle(self) -> None:
        """Wait until the votes of the round are compared, and the next one is open."""
        while self.bench.swarm.observer.busy or self.bench.swarm.intake.current is None:
            await asyncio.sleep(0)

    async def contribute(self, letter: str, payload: bytes) -> Receipt:
        member = self.members[letter]
        base = self.bench.swarm.fingerprints.at(self.bench.current.round.step)
        assert base is not None
        claim = self.bench.claim(member, payload, fingerprint=base.fingerprint.result())
        return await self.bench.swarm.contribute(member, claim, parts_of(payload))


async def test_a_node_that_flips_its_votes_loses_its_weight_and_is_told_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path, DemoSpec(k=K), length_ms=60_000, min_contributions=5)
    rounds = Rounds(bench)
    await rounds.join("f" + HONEST)
    hostile, observer = rounds.members["f"], bench.swarm.observer
    count = 0
    while (receipts := await rounds.play("f"))["f"].reason is Reason.COUNTED:
        count += 1
        assert count < ROUNDS_MAX
    assert receipts["f"].reason is Reason.SUSPECTED
    assert "contradict" in receipts["f"].text
    assert all(receipts[letter].reason is Reason.COUNTED for letter in HONEST)
    assert {(one.node_id, one.verdict, one.cause) for one in rounds.judged} == {
        (hostile.node_id, Verdict.SUSPECTED, Cause.AGAINST)
    }
    # it goes on, and is banned; its votes are in no row
    while rounds.judged[-1].verdict is not Verdict.BANNED:
        step = bench.swarm.view.step
        assert (await rounds.play("f"))["f"].reason is Reason.SUSPECTED
        assert hostile.node_id not in [one.node for one in bench.state.ledger.row(step).counted]
        count += 1
        assert count < ROUNDS_MAX
    assert rounds.judged[-1].node_id == hostile.node_id
    # the organizer overrules
    observer.pardon(hostile.node_id)
    assert (await rounds.play(""))["f"].reason is Reason.COUNTED
    assert {one.node_id for one in rounds.judged} == {hostile.node_id}
    await bench.close()


async def test_late_votes_are_not_taken_for_merged_and_may_be_sent_again(tmp_path: Path) -> None:
    """They come while the round is sealed, which a slow disk draws out. Their node puts them back."""
    bench = Bench(tmp_path, DemoSpec(k=K, update_topk=0), length_ms=60_000, min_contributions=1)
    rounds = Rounds(bench)
    await rounds.join(HONEST)
    slow, go_on, put = rounds.members["e"].node_id, threading.Event(), bench.state.bodies.put

    def put_slowly(data: bytes) -> bytes:
        assert go_on.wait(PATIENCE_S)
        return put(data)

    object.__setattr__(bench.state.bodies, "put", put_slowly)
    base = bench.swarm.fingerprints.at(0)
    assert base is not None
    await asyncio.shield(base.fingerprint)
    bench.swarm.driver.excuse(slow)
    votes = {letter: bench.payload(ord(letter), K) for letter in HONEST}
    others = [asyncio.ensure_future(rounds.contribute(letter, votes[letter])) for letter in HONEST if letter != "e"]
    async with Within(PATIENCE_S):
        while not bench.swarm.driver.machine.sealing:
            await asyncio.sleep(0.01)
    assert (await rounds.contribute("e", votes["e"])).reason is Reason.LATE
    go_on.set()
    await asyncio.gather(*others)
    await rounds.settle()
    standing = bench.swarm.observer.trust.of(slow)
    assert standing.counted == 0
    base = bench.swarm.fingerprints.at(1)
    assert base is not None
    await asyncio.shield(base.fingerprint)
    sent = [rounds.contribute(letter, bench.payload(100 + ord(letter), K)) for letter in HONEST if letter != "e"]
    *_, receipt = await asyncio.gather(*sent, rounds.contribute("e", votes["e"]))
    await rounds.settle()
    assert receipt.reason is Reason.COUNTED
    assert standing.counted == 1
    assert standing.evidence.get(Cause.REPEAT, 0.0) <= 0
    await bench.close()


async def test_contributions_beyond_the_bound_of_a_round_are_compared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can hide behind the votes of those that came first."""
    bench = Bench(tmp_path, DemoSpec(k=K), length_ms=60_000, min_contributions=5)
    rounds = Rounds(bench)
    await rounds.join(HONEST + "f")  # the hostile one comes last
    votes = K * bench.replica.layout.matrix_tiles
    monkeypatch.setattr(observer, "NOTED_VOTES_MAX", 3 * votes)
    noted = list[int]()
    voted = bench.swarm.observer.voted

    def watched(contribution: Contribution, ballot: Ballot) -> None:
        voted(contribution, ballot)
        assert bench.swarm.observer.noted_votes <= 3 * votes
        noted.append(bench.swarm.observer.noted_votes)

    monkeypatch.setattr(bench.swarm.observer, "voted", watched)
    for _ in range(ROUNDS_MAX):
        if (await rounds.play("f"))["f"].reason is Reason.SUSPECTED:
            break
    assert {(one.node_id, one.verdict, one.cause) for one in rounds.judged} == {
        (rounds.members["f"].node_id, Verdict.SUSPECTED, Cause.AGAINST)
    }
    assert max(noted) > votes
    await bench.close()


async def test_a_node_that_attends_is_present_however_long_it_sends_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, DemoSpec(k=K), length_ms=60_000, min_contributions=5)
    rounds, trust = Rounds(bench), bench.swarm.observer.trust
    await rounds.join(HONEST)
    quiet = bench.join("q")
    bench.swarm.observer.joined(quiet.node_id, "203.0.113.0/24")
    trust.observe(RoundEvidence(PRESENT_ROUNDS + 1), 0.0)
    was_present = quiet.node_id in trust.weights
    await bench.attend(quiet)
    await rounds.play("")  # without it
    is_present = quiet.node_id in trust.weights
    await bench.close()
    assert (was_present, is_present) == (False, True)
