"""Training by gossip beside an optimizer of torch, on four real ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.gossip_problem import Network, equal, train, values
from support.gossip_ranks import RANKS, run_scenes
from support.gossip_scenes import CODECS
from thinwire import Gossip
from thinwire.gossip.checks import with_form
from thinwire_proto.errors import ConfigError

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("gossip"), "support.gossip_scenes")


def test_all_ranks_start_with_all_values_of_the_first_also_frozen_ones_and_buffers(ranks: Found) -> None:
    expected = values(Network(seed=0))
    for found in ranks:
        assert equal(found["first_values"], expected)
    assert not equal(values(Network(seed=1)), expected)


def test_a_parameter_without_a_gradient_in_the_first_step_is_trained_and_mixed(ranks: Found) -> None:
    """Rank 0 never has a gradient for it, and gets the steps of the others by mixing."""
    for rank, found in enumerate(ranks):
        first, second, third, fourth = found["unused"]
        assert len({second, third, fourth}) == 3 if rank else first == second
        assert fourth != first


def test_averaging_gives_the_mean_and_restores_everything_to_the_bit(ranks: Found) -> None:
    for found in ranks:
        present, from_mean, error, restored, undisturbed = found["averaging"]
        assert present == list(range(RANKS))
        assert from_mean < 1e-6
        assert "inside `averaged`" in error
        assert restored
        assert undisturbed


def test_after_an_average_for_good_nothing_from_before_is_mixed_even_if_a_rank_was_behind(ranks: Found) -> None:
    for found in ranks:
        assert found["averaging_behind"] == [True, True]


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(ranks: Found) -> None:
    for found in ranks:
        for undisturbed, resumed, _ in found["resuming"]:
            assert undisturbed
            assert resumed
        assert not all(without_pending for _, _, without_pending in found["resuming"])


def test_states_of_ranks_that_are_behind_fit_together_without_a_barrier(ranks: Found) -> None:
    """Both ranks that skipped have sent less than the others, whose turns with them are open in the states."""
    for number in range(3):
        opened = [found["resuming_behind"][number][0] for found in ranks]
        assert opened[0] == opened[3] > 0
        assert any(found["resuming_behind"][number][1] for found in ranks)
        assert all(found["resuming_behind"][number][2] for found in ranks)


def test_states_of_different_saves_are_refused_on_all_ranks(ranks: Found) -> None:
    for rank, found in enumerate(ranks):
        other, damaged = found["two_saves"]
        assert "the ranks differ: save: " in other
        assert ".1 on rank 0, " in other
        assert other.endswith(".2 on rank 3")
        assert "the state is damaged" in damaged
        assert rank == 3 or "state: fits on rank 0, " in damaged


def test_a_rank_whose_scaler_skips_steps_is_behind_and_nobody_hangs(ranks: Found) -> None:
    for rank, found in enumerate(ranks):
        steps, left_out, iteration = found["skipping"]
        assert steps == (9 if rank == 1 else 12)
        assert 8 <= iteration <= 11 if rank == 1 else iteration == 11  # far behind, it skips to its peers' iteration
        assert left_out == {}


def test_ranks_with_different_numbers_of_steps_end_together(ranks: Found) -> None:
    for rank, found in enumerate(ranks):
        assert found["unequal_steps"] == (5 + 4 * rank, {}, list(range(RANKS)))


def test_the_mean_of_all_ranks_stays_whatever_is_late(ranks: Found) -> None:
    for number in range(3):
        biases = [found["mean_stays"][number][0] for found in ranks]
        assert sum(biases) / RANKS == pytest.approx(1.5, abs=1e-12)
        assert max(biases) - min(biases) < (1e-2 if number else 1e-12)
        late = sum(found["mean_stays"][number][1] for found in ranks)
        assert late >= RANKS if number else late == 0


def test_parameters_of_several_dtypes_are_mixed(ranks: Found) -> None:
    for found in ranks:
        for tensor in found["several_dtypes"][:4]:
            assert torch.equal(tensor, torch.full_like(tensor, 1.5))
        assert torch.equal(found["several_dtypes"][4], torch.arange(6.0).view(2, 3).t())


def test_differences_between_ranks_are_named_on_all_of_them(ranks: Found) -> None:
    for found in ranks:
        assert "every: 1 on rank 0, 2 on rank 3" in found["at_odds"]["setting"]
        assert (
            "parameter weight: [2, 2] torch.float32 on rank 0, [2, 3] torch.float32 on rank 3"
            in (found["at_odds"]["shape"])
        )
        assert "create a new Gossip after `add_param_group`" in found["at_odds"]["group"]
        assert "run each forward and backward pass under `model.no_sync()`" in found["at_odds"]["wrapped"]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_edges_hold_equal_copies_and_bring_the_ranks_together(ranks: Found, codec: str) -> None:
    """Both ends of an edge have the same two copies, to the bit. So the mean stays, but for rounding."""
    biases = []
    for rank, found in enumerate(ranks):
        bias, copies, traffic, resumed = found["compressed"][codec]
        biases.append(bias)
        for peer, copy in copies["own"].items():
            assert torch.equal(copy, ranks[peer]["compressed"][codec][1]["theirs"][rank])
        assert copies["own"]
        assert 0 < traffic["bytes_sent"] < found["compressed"]["dense"][2]["bytes_sent"]
        assert resumed
    assert sum(biases) / RANKS == pytest.approx(1.5, abs=1e-5)
    assert max(biases) - min(biases) < 1.5  # 3 in the beginning


def test_one_rank_alone_trains_as_without_gossip() -> None:
    ends = []
    for gossips in (True, False):
        model = Network(seed=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        gossip = Gossip(model, optimizer) if gossips else None
        train(model, optimizer, 0, 0, 5)
        if gossip is not None:
            with gossip.averaged() as present:
                assert present == [0]
            assert gossip.state_dict()["steps"] == 5
            gossip.finish()
        ends.append(values(model))
    assert equal(*ends)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codec": "smoke signals"}, "there is no 'smoke signals'"),
        ({"gamma": 1.5}, "gamma must be above 0"),
        ({"every": 0}, "every must be a whole number"),
        ({"slack": -1}, "slack must be a whole number, 0 to 4; it is -1"),
        ({"slack": 5}, "slack must be a whole number, 0 to 4; it is 5"),
        ({"slack": "1"}, "slack must be a whole number, 0 to 4; it is '1'"),
        ({"slack": 1.5}, "slack must be a whole number"),
        *(({"patience_s": value}, "patience_s must be above 0") for value in (0, -1, math.nan, math.inf, "x")),
        ({"codec": None}, "codec must be a name, .*; it is None"),
        ({"codec": 3}, "codec must be a name"),
        ({"topology": 3}, "topology must be a name"),
        ({"gamma": "a"}, "gamma must be above 0, and at most 1; it is 'a'"),
        ({"every": "2"}, "every must be a whole number, 1 or more; it is '2'"),
        ({"per_host": "a"}, "per_host must be a whole number, 1 or more; it is 'a'"),
        ({"seed": 1.5}, "seed must be a whole number; it is 1.5"),
        ({"gradient_pull": 1.5, "codec": "sign"}, "gradient_pull must be 0 to 1; it is 1.5"),
        ({"gradient_pull": 0.4}, "gradient_pull needs copies of the peers, .* take bf16, int8 or sign"),
        ({"consensus_target": "a"}, "consensus_target must be above 0 steps; it is 'a'"),
        ({"topology": "mesh"}, "there is no 'mesh'"),
        ({"per_host": 2}, "cannot be divided"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    model = Network(seed=0)
    with pytest.raises(ConfigError, match=message):
        Gossip(model, torch.optim.SGD(model.parameters()), **settings)


def test_a_model_that_cannot_be_mixed_is_refused() -> None:
    model, other = Network(seed=0), Network(seed=1)
    with pytest.raises(ConfigError, match="not the model's"):
        Gossip(model, torch.optim.SGD(other.parameters()))
    with pytest.raises(ConfigError, match="no parameter to train"):
        Gossip(model, torch.optim.SGD([model.frozen]))


@pytest.mark.parametrize("how", ["unfrozen", "replaced"])
def test_a_parameter_that_is_trained_later_is_refused(how: str) -> None:
    """Each rank would train its own, and nothing would show it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gossip = Gossip(model, optimizer)
    optimizer.step()
    if how == "unfrozen":
        model[0].requires_grad_(True)
    else:
        model[1] = nn.Linear(2, 2)
        optimizer.param_groups[0]["params"][2:] = model[1].parameters()
    with pytest.raises(ConfigError, match=f"parameter {0 if how == 'unfrozen' else 2} is trained since Gossip was"):
        optimizer.step()
    gossip.finish()


def test_an_optimizer_that_accelerate_has_prepared_is_refused() -> None:
    from accelerate import Accelerator  # noqa: PLC0415 - slow

    model = Network(seed=0)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="AcceleratedOptimizer has no hooks"):
        Gossip(model, accelerator.prepare(optimizer))
    gossip = Gossip(model, optimizer)
    accelerator.prepare(optimizer).step()
    assert gossip.steps == 1
    gossip.finish()
    accelerator.state._reset_state(reset_partial_state=True)  # for other tests of this process


@pytest.mark.parametrize(
    "call",
    [
        lambda gossip: gossip.state_dict(),
        lambda gossip: gossip.load_state_dict({}),
        lambda gossip: gossip.average(),
        lambda gossip: gossip.finish(),
        lambda gossip: gossip.averaged().__enter__(),
    ],
)
def test_inside_averaged_nothing_of_gossip_is_called(call: Callable[[Gossip], Any]) -> None:
    model = Network(seed=0)
    gossip = Gossip(model, torch.optim.SGD(model.parameters()))
    with gossip.averaged(), pytest.raises(ConfigError, match="leave the block before"):
        call(gossip)
    gossip.finish()


def test_parameters_have_one_gossip_at_a_time() -> None:
    model, other = Network(seed=0), Network(seed=1)
    optimizer = torch.optim.SGD(model.parameters())
    gossip = Gossip(model, optimizer)
    for second in (optimizer, torch.optim.SGD([model.out.bias])):
        with pytest.raises(ConfigError, match=r"has a Gossip; call its finish\(\) first"):
            Gossip(model, second)
    Gossip(other, torch.optim.SGD(other.parameters())).finish()
    gossip.finish()
    Gossip(model, optimizer).finish()


def test_a_state_that_does_not_fit_is_refused() -> None:
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gossip = Gossip(model, optimizer)
    train(model, optimizer, 0, 0, 1)
    state = gossip.state_dict()
    with pytest.raises(ConfigError, match="before the first step"):
        gossip.load_state_dict(state)
    gossip.finish()
    cases: list[tuple[Any, str]] = [
        (state | {"version": 0}, "not a state of Gossip"),
        (None, "not a state of Gossip that this version reads: 'NoneType'"),
        (model.state_dict(), "not a state of Gossip that this version reads: None"),
        ({"version": state["version"]}, "the state is damaged"),
        (state | {"steps": "1"}, "the state is damaged"),
        (state | {"exchange": {}}, "the state is damaged"),
        (state | {"own": torch.zeros(3)}, "the state is damaged"),
        (state | {"exchange": state["exchange"] | {"open": [{}]}}, "the state is damaged"),
        (state | {"rank": 1}, "rank was 1 .* to go on with other ranks, load model and optimizer alone"),
        (state | {"settings": state["settings"] | {"every": 2}}, "every was 2"),
        (
            with_form(state | {"exchange": state["exchange"] | {"without": [2]}}),
            "rank 2 was gone, .*load model and optimizer alone",
        ),
    ]
    for broken, message in cases:
        loading = Gossip(model, optimizer)
        with pytest.raises(ConfigError, match=message):
            loading.load_state_dict(broken)
        loading.finish()
    different = Network(seed=1)
    with pytest.raises(ConfigError, match="load the model's state of this rank"):
        Gossip(different, torch.optim.SGD(different.parameters())).load_state_dict(state)


def test_after_the_end_there_is_no_state() -> None:
    model = Network(seed=0)
    gossip = Gossip(model, torch.optim.SGD(model.parameters()))
    gossip.finish()
    with pytest.raises(ConfigError, match="Gossip has finished, so nothing is under way: save model and optimizer"):
        gossip.state_dict()


def test_settings_may_be_numbers_of_numpy() -> None:
    model = Network(seed=0)
    settings = {"gamma": np.float32(0.5), "consensus_target": np.float32(3.0)}
    Gossip(model, torch.optim.SGD(model.parameters()), codec="int8", **settings).finish()
