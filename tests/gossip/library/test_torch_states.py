"""The optimizers beside what torch.distributed does to models and states, on four real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from support.gossip_ranks import run_scenes
from support.torch_state_scenes import OPTIMIZERS, SHARDED
from thinwire import AccumAdamW, DeMo, Gossip
from thinwire_proto.errors import ConfigError

Found = list[dict[str, Any]]
NOT_TAKEN = (
    "Gossip takes parameters that are all whole, or all sharded by fully_shard over the same mesh of one dimension"
)
WORDS_OF_GOSSIP = {
    (False, "before"): NOT_TAKEN,
    (False, "after"): NOT_TAKEN,
    (True, "before"): "the parameters are sharded over all ranks, so there is no other site to gossip with",
    (True, "after"): "parameters of the model were replaced after Gossip was created, as FSDP does",
}
"""By whether FSDP2 has sharded the model, and when."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("states"), "support.torch_state_scenes")


def test_looking_at_a_state_is_no_step(ranks: Found) -> None:
    for found in ranks:
        assert all(found["looked_at"].values()), found["looked_at"]


def test_a_run_that_torch_saved_and_loaded_equals_the_uninterrupted_one_to_the_bit(ranks: Found) -> None:
    for found in ranks:
        assert all(found["resumed"].values()), found["resumed"]


def test_sharded_parameters_are_refused_in_one_sentence_on_all_ranks(ranks: Found) -> None:
    for found in ranks:
        assert len(found["refused"]) == len(OPTIMIZERS) * (2 * len(SHARDED) - 1)
        for (name, sharding, when), error in found["refused"].items():
            if name == "Gossip":
                assert WORDS_OF_GOSSIP[sharding == "FSDP2", when] in error, (sharding, when, error)
                continue
            assert error.startswith(f"{name} does not work with FSDP, tensor parallelism or ZeRO-3 yet: "), (
                name,
                sharding,
                when,
                error,
            )
            assert error.endswith("leave the model unwrapped, so that each rank holds all parameters whole")


def test_parameters_without_values_or_shape_are_refused() -> None:
    with torch.device("meta"):
        empty = nn.Linear(3, 3)
    for create in (DeMo, AccumAdamW):
        with pytest.raises(ConfigError, match=r'cannot take weight, which has no values because it is on .*"meta"'):
            create(empty.named_parameters())
    with pytest.raises(ConfigError, match="Gossip cannot take weight, which has no values"):
        Gossip(empty, torch.optim.AdamW(empty.parameters()))
    lazy = nn.LazyLinear(3)
    with pytest.raises(ConfigError, match="cannot take parameter 0 before it has a shape: run a forward pass"):
        DeMo(lazy.parameters())


def test_a_parameter_that_another_library_has_partitioned_is_refused() -> None:
    parameter = nn.Parameter(torch.empty(0))
    parameter.ds_id = 7  # type: ignore[attr-defined] # as DeepSpeed marks it
    with pytest.raises(ConfigError, match="parameter 0 is partitioned by DeepSpeed's ZeRO-3"):
        DeMo([parameter])


def test_parameters_that_were_replaced_are_found_in_the_first_step() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gossip = Gossip(model, optimizer)
    model[1] = nn.Linear(3, 3)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ConfigError, match="parameters of the model were replaced after Gossip was created"):
        optimizer.step()
    gossip.finish()
