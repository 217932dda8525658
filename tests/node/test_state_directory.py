"""A node's state directory keeps its contents, ignores damaged files and serves one node at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.saved_state import save_momentum
from support.small import random_replica, small_contract, small_corpus
from thinwire.compression.residual import Pending
from thinwire.compression.sent import Sent
from thinwire_node.storage.state import Head, KeptMomentum, NodeState
from thinwire_proto.errors import ConfigError


def test_a_state_directory_keeps_its_contents(tmp_path: Path) -> None:
    contract = small_contract()
    state = NodeState(tmp_path)
    assert (state.contract(), state.data(contract), state.head, state.replica(contract)) == (None,) * 4
    replica = random_replica(contract, step=9)
    state.write("contract.json", contract.written)
    state.write("corpus.zst", small_corpus().pack())
    state.advance(Head(9, b"h" * 32))
    state.write_head()
    state.publish(state.write_replica(replica))
    state.close()

    again = NodeState(tmp_path)
    assert again.node_id == state.node_id
    assert again.contract() == contract
    assert again.head == Head(9, b"h" * 32)
    data, found = again.data(contract), again.replica(contract)
    assert data is not None
    assert small_corpus().hash in data.describe()
    assert found is not None
    assert (found.step, found.state_hash()) == (9, replica.state_hash())
    again.close()


def test_torn_files_count_as_missing(tmp_path: Path) -> None:
    contract = small_contract()
    state = NodeState(tmp_path)
    for name in ("corpus.zst", "head.json", "replica.safetensors", "momentum.safetensors"):
        (tmp_path / name).write_bytes(b"\x00torn")
    assert state.data(contract) is None
    assert state.head is None
    assert state.replica(contract) is None
    assert state.momentum({"momentum": (3,)}) is None
    (tmp_path / "node_id").write_bytes(b"\xff\xfe torn")
    (tmp_path / "contract.json").write_bytes(b"{}")
    with pytest.raises(ConfigError, match="delete it: the node fetches it again"):  # and it keeps its key
        state.contract()
    state.close()


def test_a_saved_momentum_loads_only_if_it_is_finite_and_fits(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    save_momentum(state, KeptMomentum({"momentum": torch.arange(3.0)}, 7, None))
    found = state.momentum({"momentum": (3,)})
    assert found is not None
    assert (found.momentum["momentum"].tolist(), found.trained_through, found.pending) == ([0, 1, 2], 7, None)
    for bad in (torch.zeros(4), torch.tensor([0.0, float("nan"), 0.0])):
        save_momentum(state, KeptMomentum({"momentum": bad}, None, None))
        assert state.momentum({"momentum": (3,)}) is None
    state.close()


def test_the_pending_contribution_is_saved_with_the_momentum(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    sent = Sent(torch.tensor([1, 5]), torch.tensor([0.5, -0.25]), 12)
    save_momentum(state, KeptMomentum({"momentum": torch.zeros(9)}, 7, Pending(b"h" * 32, sent)))
    found = state.momentum({"momentum": (9,)})
    assert found is not None
    assert found.pending is not None
    assert found.pending.hash == b"h" * 32
    assert found.pending.sent.components.tolist() == [1, 5]
    assert found.pending.sent.values.tolist() == [0.5, -0.25]
    assert found.pending.sent.extraction == 0  # the momentum was not decayed since
    state.close()


def test_an_older_head_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.advance(Head(9, b"n" * 32))
    state.write_head()
    state.advance(Head(4, b"o" * 32))
    state.write_head()
    assert state.head == Head(9, b"n" * 32)
    state.close()
    again = NodeState(tmp_path)
    assert again.head == Head(9, b"n" * 32)
    again.close()


def test_two_nodes_do_not_share_a_state_directory(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    with pytest.raises(ConfigError, match="another node runs on this state directory"):
        NodeState(tmp_path)
    state.close()


def test_an_error_names_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used as a state directory"):
        NodeState(tmp_path / "file")


def test_a_failing_disk_raises_os_error_and_keeps_the_old_file(tmp_path: Path) -> None:
    """The error type of safetensors would end the node with a traceback."""
    state = NodeState(tmp_path)
    save_momentum(state, KeptMomentum({"momentum": torch.ones(3)}, 1, None))
    (tmp_path / "momentum.part").mkdir()
    with pytest.raises(OSError, match="cannot be written"):
        save_momentum(state, KeptMomentum({"momentum": torch.zeros(3)}, 2, None))
    kept = state.momentum({"momentum": (3,)})
    assert kept is not None
    assert kept.momentum["momentum"].tolist() == [1, 1, 1]
    state.close()
