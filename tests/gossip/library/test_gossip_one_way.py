"""Training over one-way edges on four real ranks: push-sum inside `Gossip`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from support.gossip_deaths import KILLED
from support.gossip_problem import Network, equal
from support.gossip_ranks import RANKS, run_scenes
from support.one_way_topologies import EXPONENTIAL
from thinwire import Gossip
from thinwire_proto.errors import ConfigError, LocalError

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("one-way"), "support.gossip_one_way")


def test_training_follows_the_formula_of_push_sum(ranks: Found) -> None:
    for found in ranks:
        assert all(difference < 1e-4 for difference, _ in found["by_hand"])
        assert [weight for _, weight in found["by_hand"][:2]] == [1, 1]
    assert len({round(found["by_hand"][2][1], 3) for found in ranks}) > 1  # weights that differ


def test_all_come_to_the_mean_of_all_ranks_whatever_is_late(ranks: Found) -> None:
    for number in range(6):
        ends = [found["mean_stays"][number] for found in ranks]
        for bias, mean, _, left_out in ends:
            assert bias == pytest.approx(1.5, abs=1e-4)
            assert mean == pytest.approx(1.5, abs=1e-4)
            assert left_out == {}
        late = sum(end[2] for end in ends)
        assert late > 0 if number in {2, 3} else late == 0


def test_a_run_resumed_with_ranks_behind_equals_an_uninterrupted_one_bit_for_bit(ranks: Found) -> None:
    for number in range(4):
        ends = [found["resuming"][number] for found in ranks]
        assert all(end[2] for end in ends)
        assert sum(early for early, _, _ in ends) > 0
        assert sum(opened for _, opened, _ in ends) > 0


def test_ranks_average_for_good_and_go_on(ranks: Found) -> None:
    for found in ranks:
        after, bias, at_end, restored = found["averaging"]
        assert equal(after, ranks[0]["averaging"][0])
        assert at_end == pytest.approx(bias, abs=1e-5)
        assert restored


def test_ranks_that_end_after_different_numbers_of_steps_lose_no_mass(ranks: Found) -> None:
    ends = [found["ending_apart"] for found in ranks]
    assert sum(weight for weight, _ in ends) == pytest.approx(RANKS, rel=1e-9)
    assert sum(weight * bias for weight, bias in ends) / RANKS == pytest.approx(1.5, abs=1e-5)


def test_equal_parameters_stay_as_they_are_with_every_codec(ranks: Found) -> None:
    """Both ends expect what all begin with, so a codec does not have to encode it."""
    for found in ranks:
        assert max(found["starting"]) < 1e-9


def test_after_a_kill_the_others_train_average_and_save(ranks: Found) -> None:
    living = [rank for rank in range(RANKS) if rank != KILLED]
    assert "killed" not in ranks[KILLED]
    for rank in living:
        found = ranks[rank]["killed"]
        assert found["learned"]
        assert list(found["stats"]["left_out"]) == [KILLED]
        assert found["present"] == living
        assert found["saved"] == 60
        assert equal(found["averaged"], ranks[0]["killed"]["averaged"])


def test_a_state_that_does_not_fit_is_refused(ranks: Found) -> None:
    for found in ranks:
        other, damaged = found["unlike"]
        assert other == "topology was 'ring' when the state was saved, and is 'directed-exponential'"
        assert "the state is damaged" in damaged


def test_a_rank_alone_trains_as_without_gossip() -> None:
    model = Network(seed=0)
    gossip = Gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), topology=EXPONENTIAL)
    before = [tensor.detach().clone() for tensor in model.parameters()]
    with gossip.averaged() as present:
        assert present == [0]
    assert equal(list(model.parameters()), before)
    gossip.finish()


def test_a_rank_whose_parameters_were_not_finite_goes_on_with_good_ones() -> None:
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gossip = Gossip(model, optimizer, topology=EXPONENTIAL)
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.out.bias.data.fill_(math.nan)
    with pytest.raises(LocalError, match="must be finite"):
        optimizer.step()
    model.load_state_dict(good)
    optimizer.step()
    gossip.finish()
    assert gossip.steps >= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codec": "sign"}, "there are the codecs dense, bf16, int8; this is 'sign'"),
        ({"gamma": 0.5}, "gamma must be 1; it is 0.5"),
        ({"consensus_target": 3.0, "codec": "int8"}, "no consensus_target yet"),
    ],
)
def test_settings_that_one_way_edges_do_not_take_are_refused(settings: dict[str, Any], message: str) -> None:
    model = Network(seed=0)
    with pytest.raises(ConfigError, match=message):
        Gossip(model, torch.optim.SGD(model.parameters()), topology=EXPONENTIAL, **settings)


def test_parameters_that_are_not_float32_are_refused() -> None:
    model = Network(seed=0, dtype=torch.float64)
    with pytest.raises(ConfigError, match="one-way edges takes float32 parameters"):
        Gossip(model, torch.optim.SGD(model.parameters()), topology=EXPONENTIAL)
