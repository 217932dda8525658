"""A node's state directory stays consistent through a power cut."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from support.saved_state import save_momentum
from support.small import random_replica, small_contract
from support.sync_log import sync_log
from thinwire_node.storage.state import Head, KeptMomentum, NodeState

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are named by /proc")


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    return NodeState(tmp_path / "node")


def test_the_list_of_sent_contributions_is_synced(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    with sync_log(monkeypatch) as log:
        state.save_sent([b"\1" * 32])
    assert log == ["sync sent.json.part", "rename sent.json", "sync node/"]


def test_dropping_removes_the_momentum_before_the_list_of_sent_contributions(
    state: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut in between could leave a momentum without its list of sent contributions."""
    save_momentum(state, KeptMomentum({"momentum": torch.zeros(2)}, None, None))
    state.save_sent([b"\1" * 32])
    with sync_log(monkeypatch) as log:
        state.drop_momentum()
    assert log == ["remove momentum.safetensors", "sync node/", "sync sent.json.part", "rename sent.json", "sync node/"]


def test_a_save_is_synced(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of sent contributions is shortened after the save, so the save must be on disk first."""
    with sync_log(monkeypatch) as log:
        save_momentum(state, KeptMomentum({"momentum": torch.zeros(2)}, None, None))
        state.publish(state.write_replica(random_replica(small_contract())))
    assert [line for line in log if line.startswith(("rename", "sync node/"))] == [
        "rename momentum.safetensors",
        "sync node/",
        "rename replica.safetensors",
        "sync node/",
    ]


def test_a_head_costs_one_sync(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head is saved with each update. An older head after a power cut does no harm."""
    with sync_log(monkeypatch) as log:
        state.advance(Head(1, b"\1" * 32))
        state.write_head()
    assert log == ["sync head.json.part", "rename head.json"]
