"""One file adds a kind of exchange, and a real node takes part in a run through it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from support.small import random_replica, small_contract, small_corpus
from thinwire_node.daemon import Node
from thinwire_node.exchange.port import (
    Admission,
    AnnouncedRound,
    Announcement,
    Applicant,
    Claim,
    ClockReading,
    EvaluationPart,
    LinkLost,
    Outcome,
    Refused,
    RunComplete,
    SealedUpdate,
    Surroundings,
)
from thinwire_node.kinds import KINDS
from thinwire_node.machine import RealMachine
from thinwire_node.part import Part
from thinwire_node.peer_settings import PeerSettings
from thinwire_node.runtime import Clocks
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_node.star.part import StarPart
from thinwire_node.storage.state import NodeState, PartialSnapshot
from thinwire_proto.blobs import Blob
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge
from thinwire_proto.wire.codec import decode_votes
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.rows import Counted, Row, contribution_hash

K, SAMPLES, STEPS, NONCE = 8, 4, 3, 7


@EXCHANGES.register
class AloneSpec(ExchangeSpec):
    kind: Literal["alone"] = "alone"


CONTRACT = small_contract(
    exchange={"kind": "alone"},
    demo={"k": K, "magnitude": "sign"},
    round={"samples": SAMPLES, "pace": "barrier"},
    schedule={"steps": STEPS, "warmup_steps": 1, "learning_rate": 1e-3},
)


class OwnClock:
    """Deadlines are on the node's own clock."""

    async def begin(self, probed: Callable[[bool], None]) -> None:
        probed(False)

    async def keep(self, probed: Callable[[bool], None]) -> None:
        await asyncio.Event().wait()

    def check(self) -> None:
        pass

    def reading(self) -> ClockReading | None:
        return ClockReading(offset=0.0, error=0.0)


class Alone:
    """An exchange that makes each contribution the next update."""

    def __init__(self, swarm: SwarmOfOne, clocks: Clocks) -> None:
        self.clock = OwnClock()
        self._swarm = swarm
        self._now = clocks.now
        self._changed = asyncio.Event()

    async def join(self, applicant: Applicant) -> Admission:
        self._node_id = applicant.key.public.node_id
        why = self._swarm.drops_momentum if applicant.momentum is not None else ""
        return Admission(CONTRACT, self._swarm.step, applicant.replica_step != self._swarm.step, why)

    async def corpus(self, contract: Contract, path: Path) -> None:
        await asyncio.to_thread(path.write_bytes, small_corpus().pack())

    async def blob(self, blob: Blob, path: Path) -> None:
        raise Refused("this swarm has no blobs")

    async def snapshot(self, folder: Path, contract: Contract, begun: PartialSnapshot | None) -> Path:
        if self._swarm.breaks_off:
            raise LinkLost(self._swarm.breaks_off.pop(0))
        path = folder / f"snapshot-{self._swarm.step}.part"
        self._swarm.replica.save(path)
        return path

    async def rounds(self) -> AsyncGenerator[Announcement, None]:
        while True:
            number, step = self._swarm.round, self._swarm.step
            if step == STEPS:
                yield RunComplete(step)
            else:
                lease = range(number * SAMPLES, (number + 1) * SAMPLES)
                yield AnnouncedRound(1, number, step, self._now() + 60, K, (NONCE,), (lease,))
            while number == self._swarm.round:
                self._changed.clear()
                await self._changed.wait()

    async def evaluated(self, part: EvaluationPart, loss: float) -> None:
        raise Refused("this swarm measures no held-out loss")

    async def publish(self, claim: Claim, payload: bytes) -> Outcome:
        if reason := self._swarm.loses_connection:
            self._swarm.loses_connection = ""
            raise LinkLost(reason)
        outcome = self._swarm.seal(self._node_id, claim, payload, self._now())
        self._changed.set()
        if reason := self._swarm.loses_receipt:
            self._swarm.loses_receipt = ""
            raise LinkLost(reason)
        return outcome

    async def outcome(self, contribution: bytes) -> Outcome:
        for sealed in self._swarm.sealed:
            if contribution in sealed.row.contributions:
                return Outcome(Reason.COUNTED, step=sealed.row.step)
        return Outcome(Reason.UNKNOWN, "it never came")

    async def updates(self, replica: Replica, saved_s: Callable[[], float]) -> AsyncGenerator[SealedUpdate, None]:
        for step in range(replica.step, STEPS):
            while step >= self._swarm.step:
                self._changed.clear()
                await self._changed.wait()
            yield self._swarm.sealed[step]
        await asyncio.Event().wait()

    async def leave(self, trained_through: int | None) -> None:
        self._swarm.left += 1

    async def close(self) -> None:
        pass


class SwarmOfOne:
    """The state of the run. `loses_connection`: why the connection breaks before the next contribution arrives.
    `loses_receipt`: the same after it has arrived. `breaks_off`: the same for the next snapshots. `drops_momentum`: why
    nodes must drop theirs."""

    def __init__(self) -> None:
        self.round = 0
        self.replica = random_replica(CONTRACT)
        self.sealed: list[SealedUpdate] = []
        self.loses_connection = self.loses_receipt = self.drops_momentum = ""
        self.breaks_off: list[str] = []
        self.left = 0

    @property
    def step(self) -> int:
        return len(self.sealed)

    def seal(self, node_id: str, claim: Claim, payload: bytes, now: float) -> Outcome:
        replica, step = self.replica, self.step
        self.round += 1
        if not claim.samples:
            return Outcome(Reason.NOTHING_TRAINED, "nothing was trained")
        if (claim.step, claim.fingerprint) != (step, replica.fingerprint(NONCE)):
            return Outcome(Reason.REPLICA_DIFFERS, "other parameters")
        merged = merge([(decode_votes(payload, replica.layout, K), 1)], replica.layout.components)
        update = Update(step, learning_rate(CONTRACT.schedule, step), decay(CONTRACT.schedule, step), merged)
        name = contribution_hash(CONTRACT.hash, claim.term, claim.round, node_id, payload)
        counted = (Counted(node_id, name, 1, claim.samples),)
        body_hash = hashlib.sha256(payload).digest()
        row = Row(step, claim.round, 1, NONCE, claim.fingerprint, body_hash, len(payload), counted, replica.head)
        replica.apply(update, row.hash)
        self.sealed.append(SealedUpdate(row, update, len(payload), step + 1))
        return Outcome(Reason.COUNTED, step=step, arrived=now)


SWARMS: dict[str, SwarmOfOne] = {}
"""Swarms by address."""


@KINDS.register("alone")
class AlonePart(StarPart):
    @staticmethod
    async def open_exchange(surroundings: Surroundings) -> Any:
        return Alone(SWARMS[surroundings.address], surroundings.clocks)


def settings(folder: Path, address: str) -> NodeSettings:
    SWARMS[address] = SwarmOfOne()
    return NodeSettings(address, folder / "node", "cpu", NodeOptions("a", SAMPLES, None), None)


def settings_of_a_member(folder: Path, address: str) -> NodeSettings:
    """The settings of a node that has the contract of an earlier life."""
    found = settings(folder, address)
    kept = NodeState(found.state_dir)
    kept.write("contract.json", CONTRACT.written)
    kept.close()
    return found


async def test_a_node_takes_part_through_an_exchange_defined_in_this_file(tmp_path: Path) -> None:
    node = Node(settings_of_a_member(tmp_path, "alone:1"))
    swarm = SWARMS["alone:1"]
    swarm.loses_connection = "the cable was pulled"
    await node.run(asyncio.Event())
    record = node.record
    assert (record.counted, record.sessions, record.sessions_lost) == (STEPS, 2, 1)
    # the lost contribution's gradient went back into the momentum; its lease was used up
    assert {name: count for name, count in record.outcomes.items() if count} == {
        "counted": STEPS,
        "unknown": 1,
        "nothing_trained": 1,
    }
    assert record.samples == (STEPS + 1) * SAMPLES
    assert node.part is not None
    assert node.part.replica is not None
    assert node.part.replica.state_hash() == swarm.replica.state_hash()
    assert swarm.left == 1


async def test_a_contribution_whose_receipt_was_lost_is_counted_with_its_tokens(tmp_path: Path) -> None:
    node = Node(settings_of_a_member(tmp_path, "alone:5"))
    SWARMS["alone:5"].loses_receipt = "the cable was pulled"
    await node.run(asyncio.Event())
    record = node.record
    assert (record.counted, record.not_counted, record.sessions_lost) == (STEPS, 0, 1)
    assert record.tokens == STEPS * SAMPLES * CONTRACT.model.context


class Introduced(RealMachine):
    """A machine that opens the same exchange for every kind. It sends the contract to a node that has none."""

    def __init__(self, settings_: NodeSettings) -> None:
        super().__init__(settings_.state_dir, settings_.device)
        self.kinds: list[str] = []
        self.thin_lines: list[bool] = []

    def kind(self, name: str) -> type[Part]:
        machine = self

        class Noted(AlonePart):
            @staticmethod
            async def open_exchange(surroundings: Surroundings) -> Any:
                machine.kinds.append(name)
                machine.thin_lines.append(surroundings.thin_line)
                return await AlonePart.open_exchange(surroundings)

        return Noted


@pytest.mark.parametrize("peers", [PeerSettings(7710), PeerSettings(dials=False), PeerSettings()])
async def test_options_for_peers_are_said_to_have_no_effect_in_a_run_with_a_centre(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, peers: PeerSettings
) -> None:
    told = settings(tmp_path, "alone:7")
    told = replace(told, options=replace(told.options, peers=peers))
    await Node(told, Introduced(told)).run(asyncio.Event())
    assert caplog.text.count("--peers has no effect in this run") == (peers != PeerSettings())


NO_ANSWER, PULLED = "Stream removed (ping timeout)", "the cable was pulled"
CUT = "Stream removed (recvmsg:Connection reset by peer (104))"


@pytest.mark.parametrize(
    ("while_fetching", "while_training", "thin_line"),
    [
        ([NO_ANSWER], "", True),
        ([PULLED, PULLED], "", False),
        ([], NO_ANSWER, False),
        ([CUT], "", False),
        ([CUT, CUT], "", True),
    ],
)
async def test_a_node_whose_ping_was_not_answered_while_it_fetched_bounds_what_is_on_the_way_to_it(
    tmp_path: Path, while_fetching: list[str], while_training: str, thin_line: bool
) -> None:
    """Where the coordinator's ping was not answered, it cuts the connection; but so does a restart of it."""
    settings_ = settings(tmp_path, "alone:3")
    swarm = SWARMS["alone:3"]
    swarm.breaks_off, swarm.loses_connection = list(while_fetching), while_training
    machine = Introduced(settings_)
    await Node(settings_, machine).run(asyncio.Event())
    assert machine.thin_lines[-1] is thin_line
    assert not any(machine.thin_lines[:-1])


async def train_once(told: NodeSettings, rounds: int = 1) -> None:
    """So many contributions, and then the node leaves and keeps its momentum."""
    once = replace(told, options=NodeOptions("a", SAMPLES, rounds))
    await Node(once, Introduced(once)).run(asyncio.Event())
    assert (told.state_dir / "momentum.safetensors").exists()


async def events_of_the_next_life(told: NodeSettings, caplog: pytest.LogCaptureFixture) -> list[str | None]:
    with caplog.at_level(logging.INFO):
        await Node(told, Introduced(told)).run(asyncio.Event())
    return [getattr(record, "event", None) for record in caplog.records]


def damage(path: Path) -> None:
    path.write_text('["6161')


@pytest.mark.parametrize("lose", [damage, Path.unlink])
async def test_a_momentum_is_dropped_if_the_list_of_sent_contributions_is_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lose: Callable[[Path], None]
) -> None:
    """Otherwise votes that are in an update already could be sent again."""
    told = settings(tmp_path, "alone:3")
    await train_once(told)
    lose(told.state_dir / "sent.json")
    events = await events_of_the_next_life(told, caplog)
    assert "node.momentum_dropped" in events
    assert "node.momentum_taken_up" not in events
