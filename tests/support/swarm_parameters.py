"""A gossip run on disk: the journals of its nodes, and the rows and the mean that its coordinator
sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgpack
import torch

from support.real import RealSwarm
from thinwire_node.gossip.journal import GossipJournal, JournalEntry
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.exact.replica import load_replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.gossip.final_mean import BoundedMean, bounded_mean, final_mean, in_integers


def journal_of(folder: Path) -> JournalEntry:
    """The newest entry of the journal in the state directory of a node that is stopped."""
    contract, state = parse_contract((folder / "contract.json").read_bytes()), NodeState(folder)
    try:
        entry = GossipJournal(state, contract.hash).read()
    finally:
        state.close()
    assert entry is not None
    return entry


def parameters_of(folder: Path) -> torch.Tensor:
    """The parameters in a node's journal."""
    return journal_of(folder).member.tensors["x"]


def deposited_mean(swarm: RealSwarm, names: Sequence[str]) -> BoundedMean:
    """The mean of the parameters in the nodes' journals. On a busy machine it may leave out a node that was killed, and
    that trained its last iterations with nobody: the others had ended."""
    contract = parse_contract((swarm.folder / names[0] / "contract.json").read_bytes())
    nodes = [parameters_of(swarm.folder / name) for name in names]
    found = bounded_mean([lambda part, x=x: x[part] for x in nodes], layout_of(contract.parameters))  # type: ignore[misc]
    if not found.far and not found.clipped:
        assert found.mean.equal(final_mean(map(in_integers, nodes)))
    return found


def sealed_mean(swarm: RealSwarm, contract: Contract | None = None) -> torch.Tensor:
    """The last snapshot of the coordinator. contract: of the run; None: it is read from the folder of a node."""
    contract = contract or parse_contract(next(swarm.folder.glob("*/contract.json")).read_bytes())
    path = next(path for path in (swarm.state / "snapshots").glob("*.safetensors") if path.stem != "0")
    return torch.cat([tensor.reshape(-1) for tensor in load_replica(contract, path).tensors.values()])


def rows(swarm: RealSwarm) -> int:
    """The number of sealed rows."""
    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as ledger:
        (count,) = ledger.execute("SELECT count(*) FROM rows").fetchone()
    return int(count)


def counted_samples(swarm: RealSwarm) -> int:
    """The samples that the sealed beats count. The last row is that of the mean."""
    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as ledger:
        beats = ledger.execute("SELECT counted FROM rows ORDER BY step").fetchall()[:-1]
    return sum(samples for (counted,) in beats for _, _, _, samples in msgpack.unpackb(counted, raw=False))
