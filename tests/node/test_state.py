"""What a node's state directory keeps through a power cut."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from support.small import random_replica, small_contract
from support.sync_log import sync_log
from thinwire_node.storage.state import Head, KeptMomentum, NodeState

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are named by /proc")


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    return NodeState(tmp_path / "node")


def test_what_was_sent_is_on_disk_before_it_leaves(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    with sync_log(monkeypatch) as log:
        state.save_sent([b"\1" * 32])
    assert log == ["sync sent.json.part", "rename sent.json", "sync node/"]


def test_a_momentum_that_is_dropped_is_gone_before_what_was_sent_is_forgotten(
    state: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut in between would otherwise leave a momentum that says that nothing was sent since."""
    state.save_momentum(KeptMomentum({"momentum": torch.zeros(2)}, None, None))
    state.save_sent([b"\1" * 32])
    with sync_log(monkeypatch) as log:
        state.drop_momentum()
    assert log == ["remove momentum.safetensors", "sync node/", "sync sent.json.part", "rename sent.json", "sync node/"]


def test_a_save_is_there_for_good(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of what was sent since grows shorter next, which must not come first."""
    with sync_log(monkeypatch) as log:
        state.save_momentum(KeptMomentum({"momentum": torch.zeros(2)}, None, None))
        state.save_replica(random_replica(small_contract()))
    assert [line for line in log if line.startswith(("rename", "sync node/"))] == [
        "rename momentum.safetensors",
        "sync node/",
        "rename replica.safetensors",
        "sync node/",
    ]


def test_a_head_costs_one_sync(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved with each update; an older one after a power cut does no harm."""
    with sync_log(monkeypatch) as log:
        state.save_head(Head(1, b"\1" * 32))
    assert log == ["sync head.json.part", "rename head.json"]
