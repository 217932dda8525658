"""No local rule loses anything: what was learned is sent, stays in the momentum or is put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.small import SHAPES, random_replica, random_votes, shapes_contract, small_contract
from support.small_trainer import small_trainer
from thinwire.compression.sent import Sent
from thinwire_node.star.rules import Rule, make_rule, shapes_kept
from thinwire_node.star.trainer import Trainer
from thinwire_proto.contract import Contract
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.magnitudes import TABLE, UNIT
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.exact.transform import forward
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes

CPU = torch.device("cpu")
NUMBERED = torch.device("cpu:0")
"""The CPU by another name than its tensors report, so that the trainer makes copies as it does for a real device."""
LOCAL: dict[str, Any] = {"rule": {"kind": "local_adamw"}, "demo": {"beta": 0.9}}
SECTIONS: dict[str, dict[str, Any]] = {
    "demo": {"demo": {"beta": 0.9}},
    "demo with magnitudes": {"demo": {"beta": 0.9, "magnitude": "tile"}},
    "local_adamw": {"rule": {"kind": "local_adamw"}, "demo": {"beta": 0.9}},
    "local_muon": {"rule": {"kind": "local_muon"}, "demo": {"beta": 0.9}},
}
RATE = 0.01


@pytest.fixture(params=list(SECTIONS))
def contract(request: pytest.FixtureRequest) -> Contract:
    return shapes_contract(**SECTIONS[request.param])


def rule_of(contract: Contract) -> Rule:
    return make_rule(contract, layout_of(contract.parameters), CPU)


def tensors_of(seed: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{number}": size * torch.randn(shape, generator=generator) for number, shape in enumerate(SHAPES)}


def trained(rule: Rule, *seeds: int) -> None:
    parameters = tensors_of(100, 0.02)
    for seed in seeds:
        rule.learn(parameters, tensors_of(seed), 2, RATE)


def dense(layout: TileLayout, sent: Sent) -> torch.Tensor:
    """The sent components as a flat buffer in tile space."""
    flat = torch.zeros(layout.components)
    flat[sent.components] = sent.values
    return flat


def transformed(layout: TileLayout, flat: torch.Tensor) -> torch.Tensor:
    """The coefficients of a flat buffer in tile space, as another such buffer."""
    parts = (forward(layout.matrices(flat)), forward(layout.vectors(flat)))
    return torch.cat([part.flatten() for part in parts])


def test_kept_and_sent_components_add_up_to_what_was_learned(contract: Contract) -> None:
    rule, twin = rule_of(contract), rule_of(contract)
    for one in (rule, twin):
        trained(one, 1, 2)
    sent = rule.extract(16, RATE)
    everything = twin.extract(1, RATE)  # a larger extraction from a twin rule: another part of the same sum
    layout = layout_of(contract.parameters)
    whole = rule.momentum.buffer + dense(layout, sent)
    assert torch.allclose(whole, twin.momentum.buffer + dense(layout, everything), atol=1e-6)
    assert whole.abs().max() > 1e-3
    is_less = len(everything.components) < len(sent.components)
    assert is_less != contract.demo.sends_whole_tiles  # where everything is sent, k does not matter


def test_a_contribution_that_was_not_counted_is_put_back(contract: Contract) -> None:
    rule = rule_of(contract)
    trained(rule, 1)
    sent = rule.extract(16, RATE)
    kept = rule.momentum.buffer.clone()
    rule.put_back(sent)
    assert torch.allclose(rule.momentum.buffer, kept + dense(layout_of(contract.parameters), sent), atol=1e-6)


def test_a_rule_resumes_exactly_from_its_state(contract: Contract) -> None:
    rule, again = rule_of(contract), rule_of(contract)
    trained(rule, 1, 2)
    rule.extract(16, RATE)
    state = rule.state()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == shapes_kept(contract)
    assert all(tensor.dtype == torch.float32 for tensor in state.values())
    again.load({name: tensor.clone() for name, tensor in state.items()})
    sent = []
    for one in (rule, again):
        trained(one, 3, 4)
        sent.append(one.extract(16, RATE))
    assert torch.equal(sent[0].components, sent[1].components)
    assert torch.equal(sent[0].values, sent[1].values)
    assert torch.equal(rule.momentum.buffer, again.momentum.buffer)


def test_a_cleared_gradient_is_not_sent(contract: Contract) -> None:
    rule = rule_of(contract)
    trained(rule, 1)
    rule.clear()
    assert rule.offset is None or all(not tensor.any() for tensor in rule.offset.values())
    rule.learn(tensors_of(100, 0.0), {name: 0 * tensor for name, tensor in tensors_of(1).items()}, 1, 0.0)
    assert len(rule.extract(16, RATE).components) == 0


def test_with_magnitudes_each_value_equals_its_tiles_code() -> None:
    contract = shapes_contract(**LOCAL)
    layout = layout_of(contract.parameters)
    rule = rule_of(contract)
    trained(rule, 1)
    sent = rule.extract(8, RATE)
    votes = sent.votes()
    assert votes.codes is not None
    tiles = layout.tile_of(votes.components).tolist()
    code_of = dict(zip(sorted(set(tiles)), votes.codes.tolist(), strict=True))
    assert [abs(value) for value in sent.values.tolist()] == [int(TABLE[code_of[tile]]) * UNIT for tile in tiles]
    assert len(set(votes.codes.tolist())) > 1


# local_adamw alone


def test_inner_steps_equal_torch_adamw() -> None:
    """Compares with torch.optim.AdamW across rounds: moments are kept, and each round starts at the base."""
    contract = shapes_contract(rule={"kind": "local_adamw"})
    rule = rule_of(contract)
    theta = {name: torch.nn.Parameter(tensor) for name, tensor in tensors_of(7).items()}
    adamw = torch.optim.AdamW(theta.values(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)
    base = {name: tensor.detach().clone() for name, tensor in theta.items()}
    for first in (0, 3):
        local = {name: tensor.clone() for name, tensor in base.items()}
        with torch.no_grad():
            for name, parameter in theta.items():
                parameter.copy_(base[name])
        for seed in range(first, first + 3):
            gradients = tensors_of(seed)
            rule.learn(local, gradients, 2, RATE)
            for name, parameter in theta.items():
                parameter.grad = gradients[name]
            adamw.step()
        assert rule.offset is not None
        for name, parameter in theta.items():
            assert torch.allclose(local[name], parameter, atol=1e-5)
            assert torch.allclose(rule.offset[name], parameter - base[name], atol=1e-5)
        rule.extract(4, RATE)


def test_the_offset_is_added_to_the_error_feedback() -> None:
    contract = shapes_contract(**LOCAL)
    layout = layout_of(contract.parameters)
    rule = rule_of(contract)
    expected = torch.zeros(layout.components)
    for seed in (1, 2, 3):
        trained(rule, seed, seed + 10)
        assert rule.offset is not None
        difference = torch.zeros(layout.components)
        for tensor in layout.tensors:
            layout.add_into(difference, tensor, rule.offset[tensor.name], -1.0)
        expected = 0.9 * expected + transformed(layout, difference)
        sent = rule.extract(8, RATE)
        assert all(not tensor.any() for tensor in rule.offset.values())
        expected -= dense(layout, sent)
        assert torch.allclose(rule.momentum.buffer, expected, atol=1e-5)


def trainer_of(device: torch.device = CPU, **sections: Any) -> Trainer:
    contract = small_contract(**(LOCAL | {"schedule": {"learning_rate": 0.01, "steps": 100}} | sections))
    return small_trainer(contract, random_replica(contract, step=20), device)


def moved(trainer: Trainer, *votes: Votes) -> Replica:
    """Apply the update that the coordinator would merge from these votes to the trainer's replica, and return it."""
    replica = trainer.replica
    merger = merger_of(replica.contract, replica.layout, replica.step)
    for one in votes:
        merger.add(one, 1)
    rate = learning_rate(replica.contract.schedule, replica.step)
    replica.apply(Update(replica.step, rate, 1.0, merger.merged()), b"")
    return replica


def model_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer._compute.parameters.items()}


@pytest.mark.parametrize("device", [CPU, NUMBERED], ids=["one device", "two devices"])
def test_a_micro_batch_changes_the_nodes_copy_and_not_the_replica(device: torch.device) -> None:
    trainer = trainer_of(device)
    before = trainer.replica.state_hash()
    trainer.micro_batch(range(4))
    trainer.micro_batch(range(4, 8))
    assert trainer.replica.state_hash() == before
    offset = trainer.rule.offset
    assert offset is not None
    for name, parameter in model_of(trainer).items():
        assert torch.allclose(parameter, trainer.replica.tensors[name] + offset[name], atol=1e-6)
        assert 0.002 < offset[name].abs().max() < 0.03  # two steps of Adam at 0.01
    trainer.extract(8)
    for name, parameter in model_of(trainer).items():
        assert torch.equal(parameter, trainer.replica.tensors[name])
    assert trainer.replica.state_hash() == before


def test_an_update_between_two_micro_batches_keeps_the_offset() -> None:
    trainer = trainer_of()
    theirs = random_votes(trainer.replica.layout, 8, 1)
    sizes = torch.full((trainer.replica.layout.tiles,), 150, dtype=torch.uint8).numpy()
    tiles = len(set(trainer.replica.layout.tile_of(theirs.components).tolist()))
    theirs = Votes(theirs.components, theirs.positive, sizes[:tiles])
    trainer.micro_batch(range(4))
    offset = {name: tensor.clone() for name, tensor in (trainer.rule.offset or {}).items()}
    assert offset
    moved(trainer, theirs)
    trainer.refresh()
    for name, parameter in model_of(trainer).items():
        assert torch.allclose(parameter, trainer.replica.tensors[name] + offset[name], atol=1e-6)
    trainer.micro_batch(range(4, 8))
    now = trainer.rule.offset
    assert now is not None
    assert any(not torch.equal(now[name], offset[name]) for name in offset)
