"""Tests a node of several processes that trains an adapter: each has the whole base, and they are as one process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from proto.test_preferences import CONTEXT, pairs, rows_of
from star.site.test_ranks import played
from support.adapters import CONFIG, base_folder, made
from support.real import RealSwarm, ended, last_fingerprint
from support.small import CPU
from swarm.test_unequal_bases import ROUNDS, run_of
from thinwire_node.cli import follower
from thinwire_node.resources import Room, least_room
from thinwire_node.star.part import StarPart
from thinwire_node.star.site.leader import LeaderReplica, LeaderTrainer
from thinwire_node.star.site.messages import Base
from thinwire_node.star.site.shares import Shares
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.ranks import Ranks
from thinwire_proto.blobs import BlobFolder, BlobMissing
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.data.conversations import BEGINS, COUNTS
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import Batch, task_of

BITS = 8


def of_text() -> Batch:
    return (torch.randint(1, CONFIG["vocab_size"], (2, CONTEXT + 1), generator=torch.Generator().manual_seed(5)),)


def of_conversations() -> Batch:
    """Two rows, of which 4 and 16 tokens count. A sum of gradients times powers of two is not rounded on its way."""
    (tokens,) = of_text()
    marks = torch.zeros(tokens.shape, dtype=torch.uint8)
    marks[:, 0] = BEGINS
    for row, counted in enumerate((4, 16)):
        marks[row, -counted:] = COUNTS
    return tokens, marks


def of_preferences() -> Batch:
    """Two rows, of two pairs and of one."""
    every = pairs()
    return rows_of([every[:2], every[2:3]])


ROWS = {"text": of_text, "conversations": of_conversations, "preferences": of_preferences}


class Rows:
    def __init__(self, rows: Batch) -> None:
        self._rows = rows

    def batch(self, positions: Sequence[int]) -> Batch:
        return tuple(tensor[list(positions)] for tensor in self._rows)


def contract_of(folder: Path) -> Contract:
    _, contract, _ = made(base_folder(folder / "base"), folder / "blobs", context=CONTEXT, rank=2)
    return parse_contract(contract.written)


def first_of(contract: Contract) -> Replica:
    generator = torch.Generator().manual_seed(3)
    tensors = {one.name: torch.randn(one.shape, generator=generator) / 8 for one in contract.parameters}
    return Replica(contract, tensors, 0, bytes(32))


def extracted(trainer: Any, batches: Sequence[Sequence[int]]) -> list[Any]:
    """Votes, samples and loss of two contributions."""
    found: list[Any] = []
    for _ in range(2):
        for positions in batches:
            trainer.micro_batch(positions)
        sent, samples, loss = trainer.extract(4)
        found += [sent.components.tolist(), sent.values.tolist(), samples, pytest.approx(loss, rel=1e-6)]
    return found


def training(ranks: Ranks, *, contract: Contract, folder: Path, rows: Batch, bits: int | None) -> Any:
    """The contributions of the ranks together, and those of one process."""
    if ranks.rank:
        follower.follow(ranks, "cpu")
        return None
    blobs, task, data = BlobFolder(folder), task_of(contract.model).in_bits(BITS), Rows(rows)
    shares = Shares(first_of(contract).layout, ranks)
    make: Any = LeaderTrainer
    replica = LeaderReplica(first_of(contract), shares)
    together = make(contract, data, replica, TorchCompute(task, CPU, blobs), folder, Base(bits, folder))
    alone: Any = Trainer(contract, data, first_of(contract), TorchCompute(task, CPU, blobs))  # type: ignore[arg-type]
    return extracted(together, [[0, 1]]), extracted(alone, [[0], [1]])


@pytest.mark.parametrize("rows", ROWS)
def test_a_contribution_is_that_of_one_process_with_equal_micro_batches(tmp_path: Path, rows: str) -> None:
    contract = contract_of(tmp_path)
    known: dict[str, Any] = {"contract": contract, "folder": tmp_path / "blobs", "rows": ROWS[rows]()}
    together, alone = played(tmp_path, partial(training, **known, bits=BITS), 2)[0]
    assert together == alone
    if rows == "conversations":
        (tmp_path / "place").unlink(missing_ok=True)
        together, alone = played(tmp_path, partial(training, **known, bits=4), 2)[0]
        assert together != alone  # the follower's base is another


def without_the_base(ranks: Ranks, *, contract: Contract, folder: Path) -> str:
    """The leader has the files, and names a folder that the other does not have."""
    if ranks.rank:
        with suppress(BlobMissing):
            follower.follow(ranks, "cpu")
        return ""
    shares = Shares(first_of(contract).layout, ranks)
    compute: Any = TorchCompute(task_of(contract.model).in_bits(BITS), CPU, BlobFolder(folder))
    data: Any = Rows(of_text())
    replica = LeaderReplica(first_of(contract), shares)
    try:
        LeaderTrainer(contract, data, replica, compute, folder, Base(BITS, folder / "elsewhere"))
    except ConfigError as error:
        return str(error)
    return "nothing is wrong"


def test_a_host_without_the_base_is_told_to_share_the_directory(tmp_path: Path) -> None:
    known: dict[str, Any] = {"contract": contract_of(tmp_path), "folder": tmp_path / "blobs"}
    said = played(tmp_path, partial(without_the_base, **known), 2)[0]
    assert said.startswith("process 1 of this node finds no base of the model in ")
    assert said.endswith("let all hosts of the node share --state-dir")


def asking(ranks: Ranks) -> Any:
    if ranks.rank:
        follower.follow(ranks, "cpu")
        return None
    return ranks.rooms(3000), ranks.rooms(None)


def test_followers_tell_their_memory_once(tmp_path: Path) -> None:
    assert played(tmp_path, asking, 3)[0] == ([(1000, None)] * 2,) * 2


def test_the_process_with_the_least_memory_decides() -> None:
    room = Room(100, "here", 50, "there", 70, of_several=True)
    found = least_room(room, [(200, 90), (80, 60)])
    assert (found.memory_bytes, found.device_bytes) == (80, 60)
    assert found.memory_from == "of process 2, which has the least"
    assert least_room(room, [(100, 70), (100, None)]) == room


def test_a_site_and_a_node_of_one_process_train_one_adapter(swarm: RealSwarm) -> None:
    base = base_folder(swarm.folder / "base", config=CONFIG | {"vocab_size": 256}, scale=1)
    swarm.coordinator(run_of(base).replace(f"steps = {ROUNDS}", "steps = 30"), "--wait-for", "2", "--http", "off")
    nodes = [swarm.node("alone", "--base-bits", "4"), swarm.node("site", "--device", "cpu*2", "--base-bits", "8")]
    assert [ended(node) for node in nodes] == [0, 0]
    assert "in 8 bits a parameter" in nodes[1].text()
    status = swarm.status(fingerprint=True)
    assert {last_fingerprint(node) for node in nodes} == {(30, status.fingerprint)}
    assert (status.fingerprints_compared, status.fingerprints_different) == (60, 0)
    assert [(node.counted, node.not_counted) for node in status.nodes] == [(30, 0)] * 2


def test_a_frozen_base_is_not_divided(tmp_path: Path) -> None:
    assert StarPart.undivided(contract_of(tmp_path)) == "this run's model has a frozen base"
