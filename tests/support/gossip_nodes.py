"""Nodes of a gossip run in one process, with real work and journals. The test is their coordinator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.small import CPU, random_replica, small_corpus
from thinwire_node.exchange.port import EvaluationPart
from thinwire_node.gossip.journal import GossipJournal
from thinwire_node.gossip.part import open_training
from thinwire_node.gossip.port import BeatAnswer, Listener, PeerPlace, Phase, Relay
from thinwire_node.gossip.training import GossipTraining
from thinwire_node.runtime import Clocks
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.storage.state import NodeState
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.threads import Threads, WorkerThread
from thinwire_proto.contract import Contract
from thinwire_proto.data.text import CorpusText
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.topology import Layout, make_topology
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.task import task_of

KEYS = [SecretKey(bytes([number + 1] * 32)) for number in range(8)]
"""Of the members of a test."""


@dataclass
class Hub:
    """lines: the newest of each member, by its key. sent: all messages, with those that are sent again."""

    lines: dict[PublicKey, HubLines] = field(default_factory=dict)
    sent: int = 0


class HubLines:
    """An implementation of `thinwire_node.gossip.port.Lines`. key: of this node. A peer does not learn that
    this end is closed, as that of a machine that crashed does not."""

    def __init__(self, hub: Hub, key: PublicKey, listener: Listener) -> None:
        self.peers: dict[int, PublicKey] = {}
        self.direct: tuple[int, ...] = ()
        self.listens_at = ""
        self.listener = listener
        self._hub = hub
        self._key = key
        hub.lines[key] = self

    @property
    def present(self) -> tuple[int, ...]:
        return tuple(peer for peer in self.peers if self._other(peer) is not None)

    def assign(self, peers: Mapping[int, PeerPlace]) -> None:
        new = peers.keys() - self.peers.keys()
        self.peers = {peer: place.key for peer, place in peers.items()}
        for peer in new:
            if (other := self._other(peer)) is not None:
                self.listener.present(peer)
                other.listener.present(other.number_of(self._key))

    def number_of(self, key: PublicKey) -> int:
        return next(peer for peer, known in self.peers.items() if known == key)

    def send(self, peer: int, message: Message) -> None:
        self._hub.sent += 1
        if (other := self._other(peer)) is not None:
            other.listener.received(other.number_of(self._key), message)

    def confirm(self, peer: int) -> None:
        if (other := self._other(peer)) is not None:
            other.listener.confirmed(other.number_of(self._key), self.listener.received_from(peer))

    async def run(self, relay: Relay) -> None:
        raise AssertionError("these lines need no relay")

    async def close(self) -> None:
        if self._hub.lines.get(self._key) is self:
            del self._hub.lines[self._key]

    def _other(self, peer: int) -> HubLines | None:
        """The lines of a peer, if it has one to this node."""
        other = self._hub.lines.get(self.peers[peer]) if peer in self.peers else None
        return other if other is not None and self._key in other.peers.values() else None


LEASE = 1000
"""Positions of each node's lease."""

MakeJournal = Callable[[NodeState, bytes], GossipJournal]


class GossipNodes:
    """Members 0 to count − 1 of a complete topology, each with a state directory in the folder.

    measured: what they have measured of the held-out samples."""

    def __init__(self, folder: Path, contract: Contract, count: int) -> None:
        self._folder = folder
        self._contract = contract
        self._count = count
        self._hub = Hub()
        self.states: dict[int, NodeState] = {}
        self.threads: dict[int, Threads] = {}
        self.measured: list[tuple[EvaluationPart, float]] = []
        self._evaluations: dict[int, Evaluation] = {}

    def open(
        self, member: int, make_journal: MakeJournal = GossipJournal, iterations: int | None = None
    ) -> GossipTraining:
        """Begin, or go on from the journal. iterations: of this process, at most."""
        contract = self._contract
        state = self.states[member] = NodeState(self._folder / str(member))
        kept = GossipJournal(state, contract.hash).read()
        threads = self.threads[member] = Threads(WorkerThread("c"), WorkerThread("s"), WorkerThread("j"))
        clocks, record = Clocks(), Record()
        data = CorpusText(small_corpus(), contract)
        training = open_training(
            contract,
            random_replica(contract),
            kept,
            data,
            TorchCompute(task_of(contract.model), CPU),
            make_journal(state, contract.hash),
            threads,
            lambda listener: HubLines(self._hub, KEYS[member].public, listener),
            record,
            NodeOptions("", 2, iterations),
            clocks,
        )
        fetcher = BlobFetcher(state.blobs, (), _nowhere, random.Random(0), record)
        coordinator: Any = self
        evaluation = Evaluation(coordinator, training.work, data, fetcher.fetch, training.wake, own=True)
        self._evaluations[member] = evaluation
        training.use(Prefetch(data, fetcher, record, clocks.now, training.wake), evaluation)
        return training

    async def start(self, member: int, training: GossipTraining) -> asyncio.Task[None]:
        running = training.start()
        await training.take(self.answer(member))
        return running

    def answer(self, member: int, **more: Any) -> BeatAnswer:
        """The coordinator's first answer. more: further fields of it."""
        topology = make_topology("complete", Layout(self._count))
        cycle = tuple(dict(mixing.rows[member]) for mixing in topology.mixings)
        peers = [peer for peer in range(self._count) if peer != member]
        assignment = Assignment(1, 0, member, cycle, dict.fromkeys(peers, 1))
        places = {peer: PeerPlace(KEYS[peer].public, "") for peer in peers}
        lease = (range(member * LEASE, (member + 1) * LEASE),)
        return BeatAnswer(Phase.TRAINING, "", 1.0, lease, assignment, places, **more)

    async def measure(self, member: int) -> None:
        """Prepare parts that are wanted and report their losses, until cancelled."""
        evaluation = self._evaluations[member]
        await asyncio.gather(evaluation.prepare(), evaluation.report())

    async def evaluated(self, part: EvaluationPart, loss: float) -> None:
        self.measured.append((part, loss))

    async def close(self, member: int, training: GossipTraining) -> None:
        await training.stop()
        training.work.close()
        self.states.pop(member).close()


async def _nowhere(blob: object, path: Path) -> None:
    raise AssertionError("a corpus has no blobs")
