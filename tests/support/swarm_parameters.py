"""A swarm without a centre on disk: its rows, the parameters of its nodes, and the mean that its coordinator sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch
from safetensors import safe_open

from support.real import RealSwarm
from thinwire_node.storage.gossip_journal import JOURNAL_FILE, MEMBER
from thinwire_proto.contract import parse_contract
from thinwire_proto.exact.replica import load_replica
from thinwire_proto.gossip.final_mean import final_mean, in_integers


def parameters_of(folder: Path) -> torch.Tensor:
    """The parameters in a node's journal."""
    with safe_open(folder / JOURNAL_FILE, framework="pt") as file:
        x: torch.Tensor = file.get_tensor(MEMBER + "x")
        return x.clone()


def deposited_mean(swarm: RealSwarm, names: Sequence[str]) -> torch.Tensor:
    """The mean of the parameters in the nodes' journals."""
    return final_mean(in_integers(parameters_of(swarm.folder / name)) for name in names)


def sealed_mean(swarm: RealSwarm) -> torch.Tensor:
    """The last snapshot of the coordinator."""
    contract = parse_contract(next(swarm.folder.glob("*/contract.json")).read_bytes())
    path = next(path for path in (swarm.state / "snapshots").glob("*.safetensors") if path.stem != "0")
    return torch.cat([tensor.reshape(-1) for tensor in load_replica(contract, path).tensors.values()])


def rows(swarm: RealSwarm) -> int:
    """The number of sealed rows."""
    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as ledger:
        (count,) = ledger.execute("SELECT count(*) FROM rows").fetchone()
    return int(count)
