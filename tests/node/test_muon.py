"""Muon as an optimizer of torch is the one of a node, and refuses what it cannot train."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from support.gossip_problem import Network
from support.small import small_contract
from thinwire_node import Gossip
from thinwire_node.decentralized import Muon, muon_groups
from thinwire_node.training.own_steps import make_own_steps
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.tiles import layout_of


def test_embeddings_heads_and_vectors_are_apart() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "hidden": nn.Linear(4, 3), "head": nn.Linear(3, 5)})
    matrices, others = muon_groups(model.named_parameters())
    assert [id(one) for one in matrices["params"]] == [id(model["hidden"].weight)]
    assert (matrices["is_matrices"], others["is_matrices"], len(others["params"])) == (True, False, 4)
    (only,) = muon_groups(nn.Linear(4, 3, bias=False).named_parameters())
    assert only["is_matrices"]


def test_its_steps_are_those_of_a_node() -> None:
    contract = small_contract(exchange={"kind": "gossip"}, rule={"kind": "muon"}, round={"pace": "clock"})
    layout, rule = layout_of(contract.parameters), contract.rule
    assert isinstance(rule, MuonSpec)
    x = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(1))
    named = {name: nn.Parameter(tensor.clone()) for name, tensor in layout.unflattened(x).items()}
    optimizer = Muon(muon_groups(named.items()), lr=0.02, weight_decay=contract.schedule.weight_decay)
    ours = make_own_steps(contract, layout)
    for number in range(5):
        gradient = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(2 + number))
        for name, tensor in layout.unflattened(gradient.clone()).items():
            named[name].grad = tensor
        optimizer.step()
        ours.step(x, gradient, 0.02)
    for name, tensor in layout.unflattened(x).items():
        torch.testing.assert_close(named[name].detach(), tensor, rtol=1e-4, atol=1e-5)


def test_a_resumed_script_goes_on_to_the_bit() -> None:
    def trained(model: nn.Module, optimizer: Muon, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            model(inputs).square().mean().backward()
            optimizer.step()

    def made() -> tuple[nn.Module, Muon]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        return model, Muon(muon_groups(model.named_parameters()))

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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_matrices_of_other_types_take_the_same_step(dtype: torch.dtype) -> None:
    """Also where the norm of the gradient is more than a float16 holds."""
    gradient = 100 * torch.randn(512, 256, generator=torch.Generator().manual_seed(1))
    moved = []
    for of in (torch.float32, dtype):
        parameter = nn.Parameter(torch.zeros(512, 256, dtype=of))
        parameter.grad = gradient.to(of)
        Muon([parameter], lr=1.0).step()
        moved.append(parameter.detach().float())
    assert (moved[1] - moved[0]).norm() < 0.02 * moved[0].norm()


def test_it_is_one_optimizer_for_the_exchange() -> None:
    model = Network(seed=1)
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    optimizer = Muon(muon_groups(named.items()))
    gossip = Gossip(model, optimizer, topology="ring", codec="sign")
    for one in named.values():
        one.grad = torch.ones_like(one)
    optimizer.step()
    assert gossip.stats()["steps"] == 1
    gossip.finish()


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
    too_small: list[dict[str, Any]] = [{"lr": -1.0}, {"eps": 0.0}, {"adamw_rate": -0.1}, {"weight_decay": -0.1}]
    for wrong in too_small:
        with pytest.raises(ConfigError, match="must be 0 or more"):
            Muon([matrix], **wrong)
    too_large: list[dict[str, Any]] = [{"momentum": 1.0}, {"betas": (0.9, 1.0)}]
    for wrong in too_large:
        with pytest.raises(ConfigError, match=r"must be in \[0, 1\)"):
            Muon([matrix], **wrong)
