"""A node that is killed at any point of its journal goes on to the same bits as one that was never killed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.gossip_nodes import LEASE, GossipNodes
from support.small import small_contract
from thinwire_node.gossip.journal import JOURNAL_FILE, GossipJournal, JournalEntry
from thinwire_node.gossip.rules import make_own_steps
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.tiles import layout_of

NODES, ITERATIONS, SAMPLES = 3, 6, 3
POINTS = ("before", "written", "renamed")


PULLED = "pulled"
"""AdamW, with gradients pulled towards the peers."""


def contract_with(kind: str) -> Contract:
    """kind: of the rule, or PULLED."""
    exchange = {"kind": "gossip", "topology": "complete", "codec": "int8", "patience_ms": 600_000}
    return small_contract(
        exchange=exchange | ({"gradient_pull": 0.4} if kind == PULLED else {}),
        rule={"kind": "adamw" if kind == PULLED else kind, "samples": SAMPLES},
        schedule={"steps": ITERATIONS, "warmup_steps": 1, "learning_rate": 1e-3},
        round={"pace": "clock"},
    )


CONTRACT = contract_with("adamw")
KILLS = (
    *(("adamw", write, point) for write in (1, 2, ITERATIONS, ITERATIONS + 1) for point in POINTS),
    *((kind, write, "written") for kind in ("muon", PULLED) for write in (2, ITERATIONS)),
)
"""Kind of the contract, number of the write, and the point."""


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


async def run(folder: Path, kind: str, dies: tuple[int, str] | None = None) -> dict[int, JournalEntry]:
    """Train to the end. Member 0 dies as `dies` says, and is started again. Returns the journals."""
    contract = contract_with(kind)
    nodes = GossipNodes(folder, contract, NODES)
    trainings = {member: nodes.open(member) for member in range(1, NODES)}
    trainings[0] = (
        nodes.open(0, lambda state, contract: DyingJournal(state, contract, *dies)) if dies else nodes.open(0)
    )
    running = {member: await nodes.start(member, training) for member, training in sorted(trainings.items())}
    if dies is not None:
        with pytest.raises(Killed):
            await running[0]
        await nodes.close(0, trainings[0])
        trainings[0] = nodes.open(0)
        running[0] = await nodes.start(0, trainings[0])
    await asyncio.gather(*running.values())
    found = {}
    for member, training in trainings.items():
        await training.stop()
        entry = GossipJournal(nodes.states[member], contract.hash).read()
        assert entry is not None
        found[member] = entry
        await nodes.close(member, training)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, JournalEntry]]:
    """By kind, the journals of a run in which nobody dies."""
    return {kind: asyncio.run(run(tmp_path_factory.mktemp(kind), kind)) for kind in ("adamw", "muon", PULLED)}


@pytest.mark.parametrize("kind", ["adamw", "muon", PULLED])
def test_all_iterations_are_trained_and_mixed(kind: str, whole: dict[str, dict[int, JournalEntry]]) -> None:
    journals = whole[kind]
    assert [entry.finished for entry in journals.values()] == [ITERATIONS] * NODES
    assert [entry.samples for entry in journals.values()] == [ITERATIONS * SAMPLES] * NODES
    assert [entry.trained_through for entry in journals.values()] == [
        m * LEASE + ITERATIONS * SAMPLES - 1 for m in journals
    ]
    x = torch.stack([entry.member.tensors["x"] for entry in journals.values()])
    first = journals[0].member.tensors["first"]
    assert 0 < (x - x.mean(0)).norm() < 0.3 * (x - first).norm()  # they stepped, and agree


@pytest.mark.parametrize(("kind", "write", "point"), KILLS)
def test_node_killed_at_a_write_ends_with_the_same_bits(
    kind: str, write: int, point: str, tmp_path: Path, whole: dict[str, dict[int, JournalEntry]]
) -> None:
    found = asyncio.run(run(tmp_path, kind, (write, point)))
    for member, entry in whole[kind].items():
        same = found[member]
        assert torch.equal(same.member.tensors["x"], entry.member.tensors["x"])
        assert all(torch.equal(same.moments[name], moment) for name, moment in entry.moments.items())
        assert (same.steps, same.finished, same.trained_through) == (entry.steps, entry.finished, entry.trained_through)
        assert _head(same) == _head(entry)


def _head(entry: JournalEntry) -> bytes:
    return entry.member.numbers[:35]  # msgpack: the head is the first of the list


@pytest.mark.parametrize(("kind", "other"), [("adamw", "muon"), ("muon", "adamw")])
def test_moments_of_another_optimizer_are_refused(kind: str, other: str, tmp_path: Path) -> None:
    asyncio.run(run(tmp_path, kind))
    contract = contract_with(kind)
    state = NodeState(tmp_path / "0")
    journal = GossipJournal(state, contract.hash)
    entry = journal.read()
    assert entry is not None
    moments = make_own_steps(contract_with(other), layout_of(contract.parameters)).tensors()
    journal.write(replace(entry, moments=moments))
    state.close()
    nodes = GossipNodes(tmp_path, contract, NODES)
    with pytest.raises(ConfigError, match=r"of its optimizer has the shape .* as a new node"):
        nodes.open(0)
    nodes.threads[0].close()
    nodes.states[0].close()


def test_damaged_journal_is_refused(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    assert GossipJournal(state, CONTRACT.hash).read() is None
    state.path(JOURNAL_FILE).write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="as a new node"):
        GossipJournal(state, CONTRACT.hash).read()
    state.close()
