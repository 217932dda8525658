"""Scenes of ranks that hold their disagreement below a target."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from support.gossip_problem import Network, equal, train, values
from support.gossip_ranks import RANKS
from thinwire import Gossip
from thinwire_proto.gossip.consensus import MEASURE_EVERY


def start(**settings: Any) -> tuple[Network, torch.optim.Optimizer, Gossip]:
    model = Network(seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return model, optimizer, Gossip(model, optimizer, topology="one-peer-exponential", **settings)


def climbing(rank: int) -> Any:
    """A target that no codec reaches. Returns codec and every after each period, the iterations, the reason, γ, and the
    warnings with their steps."""
    model, optimizer, gossip = start(codec="sign", every=2, consensus_target=1e-6)
    found: list[tuple[str, int]] = []
    told: list[tuple[int, str]] = []
    for step in range(8 * MEASURE_EVERY):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(model, optimizer, rank, step, step + 1)
        told += [(step, str(one.message)) for one in caught if "consensus_target" in str(one.message)]
        stats = gossip.stats()
        if not found or found[-1] != (stats["codec"], stats["every"]):
            found.append((stats["codec"], stats["every"]))
    gossip.finish()
    return found, gossip.stats()["iteration"], gossip.stats()["consensus"], gossip.factor, told


def descending(rank: int) -> Any:
    """A target that all codecs reach. Returns the codec in the end."""
    model, optimizer, gossip = start(consensus_target=1e6)
    train(model, optimizer, rank, 0, 4 * MEASURE_EVERY + 4)
    gossip.finish()
    return gossip.stats()["codec"]


def measuring(rank: int) -> Any:
    """The disagreement of one measurement, in figures of all parameters, and as the ranks report it."""
    model, optimizer, gossip = start(consensus_target=3.0)
    train(model, optimizer, rank, 0, MEASURE_EVERY + 1)  # begins iteration 32
    x = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters() if parameter.requires_grad])
    gathered = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(gathered, x)
    nodes = torch.stack(gathered).double()
    exact = math.sqrt(float(((nodes - nodes.mean(0)) ** 2).sum()) / RANKS)
    train(model, optimizer, rank, MEASURE_EVERY + 1, 2 * MEASURE_EVERY + 1)
    gossip.finish()
    return exact, gossip.stats()


def resuming(rank: int) -> Any:
    """Whether a run that resumes equals the one that went on, while codec and every change."""
    ends = []
    saved = io.BytesIO()
    last = 5 * MEASURE_EVERY
    for resumes in (False, True):
        model, optimizer, gossip = start(codec="sign", every=2, consensus_target=1e-6)
        first = 0
        if resumes:
            state = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            gossip.load_state_dict(state["gossip"])
            first = 3 * MEASURE_EVERY + 1
        for step in range(first, last):
            if step == 3 * MEASURE_EVERY + 1 and not resumes:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(states | {"gossip": gossip.state_dict()}, saved)
            train(model, optimizer, rank, step, step + 1)
        gossip.finish()
        ends.append((values(model), gossip.stats()["codec"]))
    return equal(ends[0][0], ends[1][0]), ends[0][1], ends[1][1]


SCENES: tuple[Callable[[int], Any], ...] = (climbing, descending, measuring, resuming)
