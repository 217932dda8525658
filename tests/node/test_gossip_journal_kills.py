"""A node that is killed at any point of its journal goes on to the same bits as one that was never killed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.gossip_lines import KEYS, Hub, HubLines
from support.small import CPU, random_replica, small_contract, small_corpus
from thinwire_node.exchange.gossip_port import BeatAnswer, PeerPlace, Phase
from thinwire_node.options import NodeOptions
from thinwire_node.runtime import Clocks, SystemClock
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.gossip.opening import open_training
from thinwire_node.session.gossip.training import GossipTraining
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.storage.gossip_journal import JOURNAL_FILE, GossipJournal, JournalEntry
from thinwire_node.storage.state import NodeState
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.threads import Threads, WorkerThread
from thinwire_proto.contract import Contract
from thinwire_proto.data.text import CorpusText
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.topology import Layout, make_topology
from thinwire_proto.task import task_of

NODES, ITERATIONS, SAMPLES = 3, 6, 3
_NOBODY: Any = None
POINTS = ("before", "written", "renamed")
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "int8", "patience_ms": 600_000},
    rule={"kind": "adamw", "samples": SAMPLES},
    schedule={"steps": ITERATIONS, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock"},
)


class Killed(Exception):
    """Stands for the death of the process at this point."""


class DyingJournal(GossipJournal):
    """Dies at its write number `at`: before it, with the file written and not renamed, or after all of it."""

    def __init__(self, state: NodeState, contract: bytes, at: int, point: str) -> None:
        super().__init__(state, contract)
        self._folder, self._left, self._point = state, at, point

    def write(self, entry: JournalEntry) -> None:
        self._left -= 1
        if self._left:
            super().write(entry)
            return
        if self._point == "renamed":
            super().write(entry)
        elif self._point == "written":
            old = self._folder.path(JOURNAL_FILE)
            before = old.read_bytes() if old.exists() else None
            super().write(entry)
            self._folder.path("gossip.part").write_bytes(old.read_bytes())
            old.unlink()
            if before is not None:
                old.write_bytes(before)
        raise Killed


@dataclass
class Swarm:
    """Nodes of one process; the test itself is their coordinator."""

    folder: Path
    contract: Contract = CONTRACT
    hub: Hub = field(default_factory=Hub)
    states: dict[int, NodeState] = field(default_factory=dict)
    threads: dict[int, Threads] = field(default_factory=dict)

    def open(self, member: int, dies: tuple[int, str] | None = None) -> GossipTraining:
        contract = self.contract
        state = self.states[member] = NodeState(self.folder / str(member))
        journal = GossipJournal(state, contract.hash)
        kept = journal.read()
        if dies is not None:
            journal = DyingJournal(state, contract.hash, *dies)
        threads = self.threads[member] = Threads(WorkerThread("c"), WorkerThread("s"), WorkerThread("j"))
        clock, record = SystemClock(), Record()
        data = CorpusText(small_corpus(), contract)
        training = open_training(
            contract,
            random_replica(contract),
            kept,
            data,
            TorchCompute(task_of(contract.model), CPU),
            journal,
            threads,
            lambda listener: HubLines(self.hub, KEYS[member].public, listener),
            record,
            NodeOptions("", 2, None),
            Clocks(clock.now, clock.asleep_s),
        )
        fetcher = BlobFetcher(state.blobs, (), _nowhere, random.Random(0), record)
        evaluation = Evaluation(_NOBODY, training.work, data, fetcher.fetch, training.wake)
        training.use(Prefetch(data, fetcher, record, clock.now, training.wake), evaluation)
        return training

    async def start(self, member: int, training: GossipTraining) -> asyncio.Task[None]:
        running = training.start()
        await training.take(self.answer(member))
        return running

    def answer(self, member: int) -> BeatAnswer:
        topology = make_topology("complete", Layout(NODES))
        cycle = tuple(dict(mixing.rows[member]) for mixing in topology.mixings)
        peers = [peer for peer in range(NODES) if peer != member]
        assignment = Assignment(1, 0, member, cycle, dict.fromkeys(peers, 1))
        places = {peer: PeerPlace(KEYS[peer].public, "") for peer in peers}
        first = member * 1000
        return BeatAnswer(Phase.TRAINING, "", 1.0, (range(first, first + SAMPLES * ITERATIONS),), assignment, places)

    def close(self, member: int) -> None:
        self.threads[member].close()
        self.states[member].close()


async def test_a_node_that_lacks_the_place_of_a_peer_asks_for_all_places(tmp_path: Path) -> None:
    """The coordinator leaves out those that the node has, as far as it knows."""
    swarm = Swarm(tmp_path)
    training = swarm.open(0)
    whole = swarm.answer(0)
    await training.take(replace(whole, places={1: whole.places[1]}))
    assert training.report().topology == 0
    await training.take(whole)
    assert training.report().topology == 1
    assert training.places == whole.places
    await training.stop()
    swarm.close(0)


async def _nowhere(blob: object, path: Path) -> None:
    raise AssertionError("a corpus has no blobs")


async def run(folder: Path, dies: tuple[int, str] | None = None) -> dict[int, JournalEntry]:
    """Train to the end. Member 0 dies as `dies` says, and is started again. Returns the journals."""
    swarm = Swarm(folder)
    trainings = {member: swarm.open(member, dies if member == 0 else None) for member in range(NODES)}
    running = {member: await swarm.start(member, training) for member, training in trainings.items()}
    if dies is not None:
        with pytest.raises(Killed):
            await running[0]
        await trainings[0].stop()
        swarm.close(0)
        trainings[0] = swarm.open(0)
        running[0] = await swarm.start(0, trainings[0])
    await asyncio.gather(*running.values())
    found = {}
    for member, training in trainings.items():
        await training.stop()
        entry = GossipJournal(swarm.states[member], CONTRACT.hash).read()
        assert entry is not None
        found[member] = entry
        swarm.close(member)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, JournalEntry]:
    return asyncio.run(run(tmp_path_factory.mktemp("whole")))


def test_all_iterations_are_trained_and_mixed(whole: dict[int, JournalEntry]) -> None:
    assert [entry.finished for entry in whole.values()] == [ITERATIONS] * NODES
    assert [entry.samples for entry in whole.values()] == [ITERATIONS * SAMPLES] * NODES
    assert [entry.trained_through for entry in whole.values()] == [m * 1000 + ITERATIONS * SAMPLES - 1 for m in whole]
    x = torch.stack([entry.member.tensors["x"] for entry in whole.values()])
    first = whole[0].member.tensors["first"]
    assert 0 < (x - x.mean(0)).norm() < 0.3 * (x - first).norm()  # they stepped, and agree


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("write", range(1, ITERATIONS + 2))
def test_node_killed_at_a_write_ends_with_the_same_bits(
    write: int, point: str, tmp_path: Path, whole: dict[int, JournalEntry]
) -> None:
    found = asyncio.run(run(tmp_path, (write, point)))
    for member, entry in whole.items():
        same = found[member]
        assert torch.equal(same.member.tensors["x"], entry.member.tensors["x"])
        assert all(torch.equal(same.moments[name], moment) for name, moment in entry.moments.items())
        assert (same.steps, same.finished, same.trained_through) == (entry.steps, entry.finished, entry.trained_through)
        assert _head(same) == _head(entry)


def _head(entry: JournalEntry) -> bytes:
    return entry.member.numbers[:35]  # msgpack: the head is the first of the list


def test_damaged_journal_is_refused(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    assert GossipJournal(state, CONTRACT.hash).read() is None
    state.path(JOURNAL_FILE).write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="as a new node"):
        GossipJournal(state, CONTRACT.hash).read()
    state.close()
