"""The rule `local_muon`: its steps are torch's, and its outer momentum is in what is sent."""

from __future__ import annotations

import pytest
import torch

from support.small import SHAPES, shapes_contract
from thinwire_node.star.rules import make_rule
from thinwire_node.star.rules.local_muon import LocalMuon
from thinwire_proto.contract import Contract, LocalMuonSpec, Parameter
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.exact.transform import forward
from thinwire_proto.muon import orthogonal

CPU = torch.device("cpu")
RATE = 0.01


def rule_of(contract: Contract) -> LocalMuon:
    rule = make_rule(contract, layout_of(contract.parameters), CPU)
    assert isinstance(rule, LocalMuon)
    return rule


def tensors_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{number}": torch.randn(shape, generator=generator) for number, shape in enumerate(SHAPES)}


@pytest.mark.parametrize("shape", [(8, 8), (5, 40), (40, 5)])
def test_orthogonal_keeps_the_singular_vectors_and_makes_the_values_nearly_one(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    rank = min(shape)
    left, _ = torch.linalg.qr(torch.randn(shape[0], rank, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(shape[1], rank, generator=generator))
    found = orthogonal(left @ torch.diag(torch.linspace(0.2, 3, rank)) @ right.T)
    assert found.is_contiguous()
    core = left.T @ found @ right
    values = core.diagonal()
    assert torch.allclose(core, torch.diag(values), atol=1e-4)
    assert 0.6 < values.min() <= values.max() < 1.3
    assert torch.allclose(left @ core @ right.T, found, atol=1e-4)


def test_inner_steps_equal_those_of_torch() -> None:
    """Matrices beside torch.optim.Muon, which computes in bfloat16; all others beside torch.optim.AdamW."""
    contract = shapes_contract(rule={"kind": "local_muon", "adamw_rate": 0.5, "adamw_for": ["t0"]})
    assert isinstance(contract.rule, LocalMuonSpec)
    rule, local = rule_of(contract), tensors_of(7)
    theta = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in local.items()}
    by_muon = {parameter.name for parameter in contract.parameters if contract.rule.takes(parameter)}
    assert "t0" not in by_muon
    assert 0 < len(by_muon) < len(SHAPES) - 1
    muon = torch.optim.Muon(
        [theta[name] for name in by_muon], RATE, weight_decay=0.0, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [theta[name] for name in theta.keys() - by_muon], 0.5 * RATE, betas=(0.9, 0.99), weight_decay=0.0
    )
    before = tensors_of(7)
    for seed in range(4):
        gradients = tensors_of(seed)
        rule.learn(local, gradients, 2, RATE)
        for name, parameter in theta.items():
            parameter.grad = gradients[name]
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()
    for name, parameter in theta.items():
        moved = parameter.detach() - before[name]
        apart = (local[name] - parameter.detach()).norm() / moved.norm()
        assert apart < (0.03 if name in by_muon else 1e-5)
        assert torch.allclose(rule.offset[name], local[name] - before[name], atol=1e-6)


def test_what_is_sent_and_kept_has_the_outer_momentum() -> None:
    """Nesterov's step of the outer momentum M: d + ν·M, where M ← ν·M + d."""
    contract = shapes_contract(rule={"kind": "local_muon", "outer_momentum": 0.6}, demo={"beta": 0.9})
    rule, layout = rule_of(contract), layout_of(contract.parameters)

    def coefficients(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        flat = torch.zeros(layout.components)
        for tensor in layout.tensors:
            layout.add_into(flat, tensor, tensors[tensor.name])
        parts = (forward(layout.matrices(flat)), forward(layout.vectors(flat)))
        return torch.cat([part.flatten() for part in parts])

    momentum = torch.zeros(layout.components)
    for seed in (1, 2, 3):
        kept = rule.momentum.buffer.clone()
        rule.learn(tensors_of(9), tensors_of(seed), 1, RATE)
        difference = coefficients({name: -offset for name, offset in rule.offset.items()})
        momentum = 0.6 * momentum + difference
        sent = rule.extract(8, RATE)
        whole = rule.momentum.buffer.clone()
        whole[sent.components] += sent.values
        assert torch.allclose(whole, 0.9 * kept + difference + 0.6 * momentum, atol=1e-5)


def test_embeddings_and_what_is_no_matrix_take_steps_of_adamw() -> None:
    rule = LocalMuonSpec()
    takes = {
        "blocks.0.attention.qkv.weight": (384, 128),
        "model.layers.0.mlp.up_proj.weight": (64, 32),
    }
    others = {
        "embedding.weight": (256, 128),
        "model.embed_tokens.weight": (256, 128),
        "lm_head.weight": (256, 128),
        "head.weight": (10, 128),
        "blocks.0.norm.weight": (128,),
        "patch.weight": (64, 3, 4, 4),
    }
    for name, shape in (takes | others).items():
        assert rule.takes(Parameter(name=name, shape=shape)) == (name in takes)
