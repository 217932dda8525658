"""Scenes of ranks whose gradients are pulled towards their peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from support.gossip_problem import Network, equal, loss_of, values
from support.gossip_scenes import run_training
from thinwire import Gossip


def pulled(rank: int) -> Any:
    """With gradients pulled towards the peers: whether resumed runs equal whole ones to the bit; for a bias that no
    step moves, its value between two steps and the rank's own; the mean inside `averaged`, whether everything was as
    before behind it, and the bias at the end."""
    equal_runs = []
    for settings in (
        {"topology": "ring", "codec": "sign", "gradient_pull": 0.4},
        {"topology": "complete", "codec": "int8", "gradient_pull": 1.0, "every": 2},
    ):
        whole, saved = run_training(rank, settings, None, 0, 9, save_at=5)
        again, _ = run_training(rank, settings, saved, 5, 9)
        plain, _ = run_training(rank, settings | {"gradient_pull": 0.0}, None, 0, 9)
        equal_runs.append((equal(whole, again), equal(whole, plain)))
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gossip = Gossip(model, optimizer, topology="complete", codec="int8", gamma=0.1, gradient_pull=0.5)
    model.out.bias.data.fill_(float(rank))
    for step in range(3):
        loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    between, before = model.out.bias.item(), values(model)
    with gossip.averaged():
        mean = model.out.bias.item()
    is_as_before = equal(before, values(model))
    gossip.finish()
    return equal_runs, between, mean, is_as_before, model.out.bias.item()


SCENES: tuple[Callable[[int], Any], ...] = (pulled,)
