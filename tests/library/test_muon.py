"""Muon as an optimizer of torch is the one of a node, and refuses what it cannot train."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from support.gossip_problem import Network
from support.small import small_contract
from thinwire import Gossip, Muon, muon_groups
from thinwire.steps.muon import grouped
from thinwire_node.gossip.rules import make_own_steps
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.tiles import layout_of


class Words(nn.Module):
    """A model whose names say nothing. outputs: as many as words give it a head."""

    def __init__(self, outputs: int = 5) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(5, 4), nn.Embedding(3, 4)
        self.overhead, self.scores = nn.Linear(4, 3), nn.Linear(3, 4)
        self.out = nn.Linear(4, outputs)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def of_muon(model: nn.Module, *names: str) -> list[str]:
    """The names of the parameters that take steps of Muon."""
    taken = {id(one) for group in muon_groups(model, names) if group["is_matrices"] for one in group["params"]}
    return [name for name, parameter in model.named_parameters() if id(parameter) in taken]


def test_embeddings_heads_and_vectors_take_steps_of_adamw() -> None:
    model = Words()
    assert of_muon(model) == ["overhead.weight", "scores.weight"]
    matrices, others = muon_groups(model)
    assert (matrices["is_matrices"], others["is_matrices"], len(others["params"])) == (True, False, 6)
    assert of_muon(Words(outputs=7)) == ["overhead.weight", "scores.weight", "out.weight"]
    assert of_muon(Words(outputs=7), "out", "scores.weight") == ["overhead.weight"]
    assert of_muon(nn.Linear(4, 3)) == ["weight"]


def test_a_tied_head_is_an_embedding_and_a_model_as_wide_as_its_vocabulary_has_no_head() -> None:
    tied = Words()
    tied.out.weight = tied.words.weight
    assert of_muon(tied) == ["overhead.weight", "scores.weight"]
    wide = nn.Sequential(nn.Embedding(5, 5), nn.Linear(5, 5), nn.Linear(5, 5))
    assert of_muon(wide) == ["1.weight", "2.weight"]


def test_groups_of_what_is_no_model_or_of_an_unknown_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes a model, because it looks for embeddings; this is generator"):
        muon_groups(Words().parameters())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"adamw_for takes names, for example \['out'\]"):
        muon_groups(Words(), "out")
    with pytest.raises(ConfigError, match="adamw_for: the model has no module or parameter 'heads'"):
        muon_groups(Words(), ["heads"])


def test_its_steps_are_those_of_a_node() -> None:
    contract = small_contract(exchange={"kind": "gossip"}, rule={"kind": "muon"}, round={"pace": "clock"})
    layout, rule = layout_of(contract.parameters), contract.rule
    assert isinstance(rule, MuonSpec)
    x = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(1))
    named = {name: nn.Parameter(tensor.clone()) for name, tensor in layout.unflattened(x).items()}
    groups = grouped((named[one.name], rule.takes(one)) for one in contract.parameters)
    optimizer = Muon(groups, lr=0.02, weight_decay=contract.schedule.weight_decay)
    ours = make_own_steps(contract, layout)
    for number in range(5):
        gradient = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(2 + number))
        for name, tensor in layout.unflattened(gradient.clone()).items():
            named[name].grad = tensor
        optimizer.step()
        ours.step(x, gradient, 0.02, contract.schedule.weight_decay)
    for name, tensor in layout.unflattened(x).items():
        torch.testing.assert_close(named[name].detach(), tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_resumed_script_goes_on_to_the_bit(dtype: torch.dtype) -> None:
    """Momentum has float32 also where that of the parameters cannot hold it."""

    def trained(model: nn.Module, optimizer: Muon, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            model(inputs.to(dtype)).square().mean().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad += 2e4  # the momentum exceeds 65,504, the largest float16
            optimizer.step()

    def made() -> tuple[nn.Module, Muon]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).to(dtype)
        return model, Muon(muon_groups(model))

    whole, resumed = made(), made()
    trained(*whole, range(8))
    trained(*resumed, range(3))
    file = io.BytesIO()
    torch.save((resumed[0].state_dict(), resumed[1].state_dict()), file)
    file.seek(0)
    again = made()
    of_model, of_optimizer = torch.load(file, weights_only=True)
    again[0].load_state_dict(of_model)
    again[1].load_state_dict(of_optimizer)
    trained(*again, range(3, 8))
    for name, tensor in whole[0].state_dict().items():
        assert torch.equal(again[0].state_dict()[name], tensor)


def test_it_is_one_optimizer_for_the_exchange() -> None:
    model = Network(seed=1)
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    optimizer = Muon(muon_groups(model))
    gossip = Gossip(model, optimizer, topology="ring", codec="sign")
    for one in named.values():
        one.grad = torch.ones_like(one)
    optimizer.step()
    assert gossip.stats()["steps"] == 1
    gossip.finish()


def test_the_state_of_another_optimizer_is_refused() -> None:
    model = nn.Linear(3, 2)
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias]}]
    other = torch.optim.AdamW(groups)
    with pytest.raises(ConfigError, match=r"of another optimizer, .* is_matrices is True here, and missing there"):
        Muon(muon_groups(model)).load_state_dict(other.state_dict())


def test_what_it_cannot_train_is_refused() -> None:
    matrix, vector = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3))
    with pytest.raises(ConfigError, match=r"has the shape \(3,\): put it into a group of its own"):
        Muon([matrix, vector])
    with pytest.raises(ConfigError, match="takes no complex parameters"):
        Muon([nn.Parameter(torch.ones(3, 2, dtype=torch.complex64))])
    matrix.grad = torch.ones(3, 2).to_sparse()
    optimizer = Muon([matrix])
    with pytest.raises(ConfigError, match="does not take sparse gradients"):
        optimizer.step()
    too_small: list[dict[str, Any]] = [{"lr": -1.0}, {"eps": 0.0}, {"adamw_rate": -0.1}, {"weight_decay": math.nan}]
    for wrong in too_small:
        with pytest.raises(ConfigError, match="must be 0 or more"):
            Muon([{"params": [matrix], **wrong}])
    too_large: list[dict[str, Any]] = [{"momentum": 1.0}, {"betas": (0.9, 1.0)}]
    for wrong in too_large:
        with pytest.raises(ConfigError, match=r"must be in \[0, 1\)"):
            Muon([matrix], **wrong)
