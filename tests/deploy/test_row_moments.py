"""The dense arm whose embeddings have a second moment of each row steps as `merged_muon` does, in float."""

from __future__ import annotations

import torch

from bench.convergence.all_reduce import RowMoments
from thinwire_proto.contract import MergedMuonSpec, Parameter
from thinwire_proto.exact.merged_step import take_merged_step


def test_moments_by_rows_are_those_of_merged_muon_in_float() -> None:
    rule = MergedMuonSpec(adamw_rate=1.0)
    shapes = {"embedding": (6, 8), "vector": (5,)}
    parameters = tuple(Parameter(name=name, shape=shape) for name, shape in shapes.items())
    rule = rule.model_copy(update={"adamw_for": ("embedding",)})
    exact = {name: torch.zeros(shape) for name, shape in shapes.items()}
    moments = {one.name: torch.zeros(one.shape) for one in rule.moments(parameters)}
    ours, found = RowMoments(parameters, torch.device("cpu")), {name: one.clone() for name, one in exact.items()}
    for step in range(4):
        gradients = {name: torch.randn(shape) * 10 ** (step % 2) for name, shape in shapes.items()}
        ours.begin()
        for name, gradient in gradients.items():
            found[name] -= ours.step(name, gradient)
        take_merged_step(exact, moments, gradients, rule, learning_rate=1.0, decay=1.0, step=step)
    for name in shapes:
        assert torch.allclose(found[name], exact[name], atol=1e-4)
