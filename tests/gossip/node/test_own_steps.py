"""AdamW and Muon on flat parameters are those of torch; the gradient of an iteration is that of all its samples."""

from __future__ import annotations

import pytest
import torch

from support.small import CPU, random_replica, small_contract, small_corpus
from thinwire_node.gossip.gradient import GradientSum, named_views
from thinwire_node.gossip.rules import make_own_steps
from thinwire_node.training.compute import TorchCompute
from thinwire_proto.contract import ADAM_BETAS, Contract
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.task import task_of

PARAMETERS, STEPS = 1000, 200


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(PARAMETERS, generator=generator) * 10 ** (-3 + step % 4) for step in range(STEPS)]


def contract_with(kind: str, weight_decay: float = 0.0) -> Contract:
    schedule = {"steps": STEPS, "warmup_steps": 1, "learning_rate": 1e-2, "weight_decay": weight_decay}
    rule, rounds = {"kind": kind, "samples": 2}, {"pace": "clock"}
    return small_contract(exchange={"kind": "gossip"}, rule=rule, round=rounds, schedule=schedule)


def test_matrices_take_the_steps_of_muon_and_all_else_those_of_adamw() -> None:
    """torch's Muon orthogonalizes in bfloat16, so its steps are ours to a hundredth."""
    contract = contract_with("muon", weight_decay=0.1)
    layout, rule = layout_of(contract.parameters), contract.rule
    assert isinstance(rule, MuonSpec)
    x = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(1))
    theirs = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in layout.unflattened(x).items()}
    takes = {one.name: rule.takes(one) for one in contract.parameters}
    assert 0 < sum(takes.values()) < len(takes)
    muon = torch.optim.Muon(
        [theirs[name] for name, takes_it in takes.items() if takes_it],
        *(0.01, 0.1, rule.momentum),
        adjust_lr_fn="match_rms_adamw",
    )
    # its rate is a fifth, and the decay that of the whole rate
    others = [theirs[name] for name, takes_it in takes.items() if not takes_it]
    adamw = torch.optim.AdamW(others, 0.002, betas=ADAM_BETAS, weight_decay=0.5)
    ours = make_own_steps(contract, layout)
    for number in range(5):
        gradient = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(2 + number))
        for name, tensor in layout.unflattened(gradient.clone()).items():
            theirs[name].grad = tensor
        before = x.clone()
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()
        norm = ours.step(x, gradient, 0.01, 0.1)
        assert norm == pytest.approx(float((x - before * (1 - 0.01 * 0.1)).norm()), rel=1e-3)
        for name, tensor in layout.unflattened(x - before).items():
            moved = theirs[name].detach() - layout.unflattened(before)[name]
            within = 3e-2 if takes[name] else 1e-4
            assert (tensor - moved).norm() <= within * (number + 1) * moved.norm(), name


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_saved_moments_continue_to_the_bit(kind: str) -> None:
    contract = contract_with(kind)
    layout = layout_of(contract.parameters)
    whole, x = make_own_steps(contract, layout), torch.ones(layout.parameters)
    first, y = make_own_steps(contract, layout), torch.ones(layout.parameters)
    for number in range(12):
        gradient = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(number))
        if number == 7:
            saved = {name: tensor.clone() for name, tensor in first.tensors().items()}
            steps, first = first.steps, make_own_steps(contract, layout)
            first.load(saved, steps)
        whole.step(x, gradient.clone(), 1e-3, 0.0)
        first.step(y, gradient.clone(), 1e-3, 0.0)
    assert torch.equal(x, y)
    assert not torch.equal(x, torch.ones(layout.parameters))


def test_sum_over_micro_batches_is_the_gradient_of_all_samples() -> None:
    contract = small_contract()
    layout, replica = layout_of(contract.parameters), random_replica(contract)
    x = torch.cat([replica.tensors[tensor.name].reshape(-1) for tensor in layout.tensors])
    data = CorpusText(small_corpus(), contract)
    compute = TorchCompute(task_of(contract.model), CPU)
    total = GradientSum(layout, data, compute, x)
    for positions in ([0, 1, 2], [3, 4], [5]):
        total.add(positions)
    mean = total.mean()
    assert (mean.samples, mean.dropped) == (6, 0)
    loss, whole = compute.gradients(data.batch(range(6)))
    assert abs(mean.loss - loss.item()) < 1e-5
    for name, view in named_views(layout, mean.flat).items():
        assert torch.allclose(view, whole[name], atol=1e-6)
    x.mul_(1.1)  # in place: the next sum is taken there
    total.begin()
    total.add(range(6))
    assert total.mean().loss != mean.loss
