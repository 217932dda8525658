"""State directory and devices: what a node keeps, and where it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.small import random_replica, small_contract, small_corpus
from thinwire_node.compression.momentum import Sent
from thinwire_node.compression.residual import Pending
from thinwire_node.storage.state import Head, KeptMomentum, NodeState
from thinwire_node.training import device as device_module
from thinwire_node.training.device import choose_apply_device, choose_device
from thinwire_proto.contract import DemoSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.selftest import SelfTest


def test_state_comes_back(tmp_path: Path) -> None:
    contract = small_contract()
    state = NodeState(tmp_path)
    assert (state.contract(), state.data(contract), state.head, state.replica(contract)) == (None,) * 4
    replica = random_replica(contract, step=9)
    state.write("contract.json", contract.written)
    state.write("corpus.zst", small_corpus().pack())
    state.save_head(Head(9, b"h" * 32))
    state.save_replica(replica)
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


def test_torn_files_are_as_good_as_none(tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match="give another --state-dir"):
        state.contract()
    state.close()


def test_momentum_is_taken_up_only_if_it_fits(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.save_momentum(KeptMomentum({"momentum": torch.arange(3.0)}, 7, None))
    found = state.momentum({"momentum": (3,)})
    assert found is not None
    assert (found.momentum["momentum"].tolist(), found.trained_through, found.pending) == ([0, 1, 2], 7, None)
    for bad in (torch.zeros(4), torch.tensor([0.0, float("nan"), 0.0])):
        state.save_momentum(KeptMomentum({"momentum": bad}, None, None))
        assert state.momentum({"momentum": (3,)}) is None
    state.close()


def test_a_contribution_that_is_out_is_kept_with_the_momentum(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    sent = Sent(torch.tensor([1, 5]), torch.tensor([0.5, -0.25]), 12)
    state.save_momentum(KeptMomentum({"momentum": torch.zeros(9)}, 7, Pending(b"h" * 32, sent)))
    found = state.momentum({"momentum": (9,)})
    assert found is not None
    assert found.pending is not None
    assert found.pending.hash == b"h" * 32
    assert found.pending.sent.components.tolist() == [1, 5]
    assert found.pending.sent.values.tolist() == [0.5, -0.25]
    assert found.pending.sent.extraction == 0  # the momentum was not decayed since
    state.close()


def test_contributions_whose_update_is_out_are_kept_with_the_momentum(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    awaited = (
        Pending(b"g" * 32, Sent(torch.tensor([2]), torch.tensor([0.125]), -1), 8),
        Pending(b"h" * 32, Sent(torch.tensor([1, 5]), torch.tensor([0.5, -0.25]), 0), 9),
    )
    state.save_momentum(KeptMomentum({"momentum": torch.zeros(9)}, 7, awaited[1], awaited))
    found = state.momentum({"momentum": (9,)})
    assert found is not None
    assert found.pending is not None
    assert found.pending.hash == b"h" * 32
    told = [(one.hash, one.step, one.sent.extraction, one.sent.components.tolist()) for one in found.awaited]
    assert told == [(b"g" * 32, 8, -1, [2]), (b"h" * 32, 9, 0, [1, 5])]
    assert found.awaited[1].sent.values.tolist() == [0.5, -0.25]
    state.close()


def test_what_was_sent_since_is_known_or_known_to_be_unknown(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    assert state.sent() == []
    state.save_sent([b"a" * 32, b"b" * 32])
    assert state.sent() == [b"a" * 32, b"b" * 32]
    (tmp_path / "sent.json").write_text('["6161')
    assert state.sent() is None
    state.save_momentum(KeptMomentum({"momentum": torch.ones(3)}, 1, None))
    state.drop_momentum()
    assert (state.sent(), state.momentum({"momentum": (3,)})) == ([], None)
    state.close()


def test_the_newest_head_is_never_forgotten(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.save_head(Head(9, b"n" * 32))
    state.save_head(Head(4, b"o" * 32))
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


def test_a_state_directory_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used as a state directory"):
        NodeState(tmp_path / "file")


@pytest.mark.parametrize("wanted", ["cuda:99", "quantum", "meta"])
def test_a_device_that_is_not_there_is_said(wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"--device {wanted}: cannot be used on this machine"):
        choose_device(wanted)


def test_auto_finds_a_device() -> None:
    device, _ = choose_device("auto")
    assert device.type in ("cuda", "mps", "cpu")
    assert torch.zeros(1, device=device).device == device  # with its number, as tensors have it


def test_auto_passes_over_a_device_that_is_there_but_does_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = "mps" if torch.cuda.is_available() else "cuda"  # no machine has both
    monkeypatch.setattr(torch.cuda, "is_available", lambda: claimed == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: claimed == "mps")
    device, why = choose_device("auto")
    assert device.type == "cpu"
    assert f"{claimed} does not work here" in why


def test_a_device_that_fails_the_self_test_applies_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_cpu(transform: str, device: torch.device) -> SelfTest:
        return SelfTest(device.type == "cpu", True, "synthetic")

    monkeypatch.setattr(device_module, "run_selftest", only_the_cpu)
    device, why = choose_apply_device(DemoSpec(), torch.device("meta"))
    assert device.type == "cpu"
    assert "self-test on cpu" in why
    monkeypatch.setattr(device_module, "run_selftest", lambda *_: SelfTest(False, True, "all wrong"))
    with pytest.raises(ConfigError, match="does not decode exactly"):
        choose_apply_device(DemoSpec(), torch.device("cpu"))


def test_a_device_that_cannot_run_the_self_test_applies_on_the_cpu() -> None:
    """Really run: the meta device holds no bits to compare."""
    device, _ = choose_apply_device(DemoSpec(), torch.device("meta"))
    assert device.type == "cpu"


def test_a_disk_that_fails_is_an_os_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    """safetensors has an error type of its own, which would end the node with a traceback."""
    state = NodeState(tmp_path)
    state.save_momentum(KeptMomentum({"momentum": torch.ones(3)}, 1, None))
    (tmp_path / "momentum.part").mkdir()
    with pytest.raises(OSError, match="cannot be written"):
        state.save_momentum(KeptMomentum({"momentum": torch.zeros(3)}, 2, None))
    kept = state.momentum({"momentum": (3,)})
    assert kept is not None
    assert kept.momentum["momentum"].tolist() == [1, 1, 1]
    state.close()
