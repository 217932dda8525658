"""Ranks that hold their disagreement below a target, on four real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.gossip_ranks import run_scenes
from thinwire.gossip.compressed import CompressedCodec
from thinwire.gossip.consensus_control import ConsensusControl
from thinwire.gossip.flat import FlatLayout
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import ERROR, MEASURE_EVERY

Found = list[dict[str, Any]]
torch_stores: Any = dist  # torch declares no types for them


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("consensus"), "support.gossip_consensus")


def test_all_ranks_send_more_bytes_in_the_same_iterations_while_they_are_too_far_apart(ranks: Found) -> None:
    for found in ranks:
        levels, iteration, reason, gamma, told = found["climbing"]
        assert levels == [("sign", 2), ("sign", 1), ("int8", 1), ("bf16", 1), ("dense", 1)]
        assert iteration == 7 * MEASURE_EVERY - 2  # iterations 0 to 32 take two steps each, and the others one
        assert "the target is 1e-06, and no codec sends more" in reason
        assert [step >= 6 * MEASURE_EVERY - 2 for step, _ in told] == [True]  # once, a period after dense began
        assert "consensus_target cannot be reached: the nodes are" in told[0][1]
        assert gamma == 1.0


def test_they_send_fewer_after_some_measurements_far_below_the_target(ranks: Found) -> None:
    assert [found["descending"] for found in ranks] == ["bf16"] * len(ranks)


def test_the_reported_disagreement_is_that_of_all_parameters_within_its_error(ranks: Found) -> None:
    for found in ranks:
        exact, stats = found["measuring"]
        assert exact > 0
        assert stats["disagreement"] == pytest.approx(exact, rel=2 * ERROR)
        assert stats["disagreement_error"] == ERROR
        assert 0 < stats["disagreement_in_steps"] < 100
        assert stats["disagreement"] == ranks[0]["measuring"][1]["disagreement"]


def test_a_resumed_run_takes_the_same_decisions_and_has_the_same_bits(ranks: Found) -> None:
    for found in ranks:
        assert found["resuming"] == (True, "bf16", "bf16")


def controls(store: Any, ranks: int, target: float) -> list[ConsensusControl]:
    return [ConsensusControl(target, "sign", 1, store, "run", rank, ranks) for rank in range(ranks)]


def test_a_rank_that_died_only_misses_in_the_mean_and_the_store_stays_small() -> None:
    store = torch_stores.HashStore()
    three = controls(store, 3, 1e-6)
    for iteration in range(8 * MEASURE_EVERY):
        for rank, control in enumerate(three):
            if rank < 2 or iteration <= MEASURE_EVERY:
                control.begin(iteration, torch.full((10,), float(rank)), 1.0 if control.measures(iteration) else None)
    assert [control.level.codec for control in three] == ["dense", "dense", "int8"]
    assert [control.is_unmet for control in three] == [True, True, False]
    found = [control.stats()["disagreement"] for control in three]
    assert found[:2] == pytest.approx([(10 / 4) ** 0.5] * 2)
    assert found[2] == pytest.approx((10 * 2 / 3) ** 0.5)
    assert store.num_keys() <= 2 * 3 + 2


def test_a_rank_that_resumes_before_a_measurement_takes_the_decision_of_those_behind_it() -> None:
    """The states of one save may lie on both sides of a measurement, if a scaler has skipped steps of a rank."""
    ahead, behind = controls(torch_stores.HashStore(), 2, 1e-6)
    for control in (ahead, behind):
        control.begin(0, torch.full((10,), float(control is ahead)), 1.0)
    ahead.begin(MEASURE_EVERY, torch.zeros(10), 1.0)
    states = [ahead.state_dict(), behind.state_dict()]
    again = controls(torch_stores.HashStore(), 2, 1e-6)
    for control, state in zip(again, states, strict=True):
        control.load_state_dict(state)
    again[1].begin(MEASURE_EVERY, torch.zeros(10), 1.0)
    assert again[1].level == again[0].level == ahead.level
    assert ahead.level.codec == "int8"
    assert again[1].stats() == ahead.stats()


def test_if_the_store_is_gone_the_level_stays_and_training_goes_on() -> None:
    host = torch_stores.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    guest = torch_stores.TCPStore("127.0.0.1", host.port, is_master=False, wait_for_workers=False)
    (control,) = controls(guest, 1, 1e-6)
    control.begin(0, torch.zeros(10), 1.0)
    del host
    for iteration in range(1, 3 * MEASURE_EVERY):
        control.begin(iteration, torch.zeros(10), 1.0)
    assert control.level.codec == "sign"
    assert "store is gone" in control.stats()["consensus"]


def test_a_message_of_a_codec_that_is_not_on_the_ladder_is_refused() -> None:
    codec = CompressedCodec(FlatLayout([torch.zeros(9)]), "int8", "sign")
    for message in ([], [2] + 40 * [0]):
        with pytest.raises(PayloadError, match="no message of int8, sign"):
            codec.decode(1, torch.tensor(message, dtype=torch.uint8))
