"""A node's state directory keeps its contents through power cuts, and serves one node at a time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from support.small import random_replica, small_contract
from thinwire.compression.residual import Pending
from thinwire.compression.sent import Sent
from thinwire_node.storage.state import Head, KeptMomentum, NodeState
from thinwire_node.storage.state_slots import free_state_slot
from thinwire_proto.errors import ConfigError


def save_momentum(state: NodeState, kept: KeptMomentum) -> None:
    state.publish(state.write_momentum(kept))


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


_logs: list[list[str]] = []
"""The open logs. One audit hook serves all of them, because an audit hook cannot be removed."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _logs or event not in ("os.rename", "os.remove"):
        return
    name = Path(arguments[1] if event == "os.rename" else arguments[0]).name
    for log in _logs:
        log.append(f"{event.removeprefix('os.')} {name}")


sys.addaudithook(_note)


@contextmanager
def sync_log(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list that grows with "rename NEW-NAME", "remove NAME" and "sync NAME", in order; the calls are real. A
    folder's name ends with a slash. A power cut may undo or reorder every operation that no later sync covers."""
    log: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        log.append(f"sync {path.name}{'/' * stat.S_ISDIR(os.fstat(handle).st_mode)}")

    patch.setattr(os, "fsync", noted)
    _logs.append(log)
    try:
        yield log
    finally:
        _logs.remove(log)
        patch.undo()


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


TAKER = """
import sys
from pathlib import Path
from thinwire_node.storage.state_slots import free_state_slot
with free_state_slot(Path(sys.argv[1])) as slot:
    print(slot.number, flush=True)
    sys.stdin.read()
"""
RACERS = 6


def test_nodes_that_start_together_get_different_slots_and_a_killed_node_frees_its_slot(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKER, str(tmp_path)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(RACERS)
    ]
    try:
        by_slot = {int(racer.stdout.readline()): racer for racer in racers if racer.stdout}
        assert sorted(by_slot) == list(range(RACERS))
        by_slot[2].kill()
        by_slot[2].wait()
        with free_state_slot(tmp_path) as slot:
            assert slot.number == 2
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_a_slot_in_use_as_a_state_dir_is_skipped(tmp_path: Path) -> None:
    state = NodeState(tmp_path / "0")
    with free_state_slot(tmp_path) as slot:
        assert slot.number == 1
    state.close()
    with free_state_slot(tmp_path) as slot:
        assert slot.number == 0
