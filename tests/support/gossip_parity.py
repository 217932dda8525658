"""Scenes beside decent-dp 0.2.3, and with the wrapper that has its interface."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from support.gossip_problem import FEATURES, HIDDEN, Network, distance, loss_of, values
from support.gossip_ranks import RANKS
from thinwire import AccumAdamW, DecentralizedDataParallel, Gossip
from thinwire.steps.optimizer_functions import optim_fn_adamw
from thinwire_proto.gossip.topology import Edges, Layout, make_topology, register_topology

STEPS = 200
TOPOLOGIES = {
    "complete": ("complete", 1),
    "ring": ("ring", 1),
    "one-peer-exp": ("one-peer-exponential", 1),
    "alternating-exp-ring": ("alternating-exponential-ring", 2),
}
"""decent-dp's names, with ours, and the ranks on a host."""
OPTIMIZERS = ("Adam", "AccumAdamW")


def network(seed: int) -> nn.Module:
    """A model without what decent-dp cannot have: buffers, frozen parameters and such without a gradient."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def _register(name: str, per_host: int) -> str:
    """Register a topology with the edges that decent-dp uses: those of iteration 1, then those of 3, 4, 5, … Returns
    its name."""
    cycle = make_topology(name, Layout(RANKS, per_host)).mixings

    def edges(layout: Layout) -> Edges:
        used = [cycle[number % len(cycle)] for number in (1, *range(3, STEPS + 2))]
        return [[(i, j) for i, row in enumerate(mixing.rows) for j in row if i < j] for mixing in used]

    register_topology(f"decent-dp {name}")(edges)
    return f"decent-dp {name}"


def parity(rank: int) -> Any:
    """For each topology and optimizer: the relative difference of the parameters from decent-dp's after 200 steps, and
    how far they have moved."""
    found = {}
    names = {theirs: _register(ours, per_host) for theirs, (ours, per_host) in TOPOLOGIES.items()}
    for theirs, (_, per_host) in TOPOLOGIES.items():
        for kind in OPTIMIZERS:
            expected = _decent_dp(rank, theirs, per_host, kind)
            model = network(0)
            first = values(model)
            optimizer: Any = torch.optim.Adam if kind == "Adam" else AccumAdamW
            optimizer = optimizer(model.parameters(), lr=1e-3, weight_decay=0.01)
            gossip = Gossip(model, optimizer, topology=names[theirs])
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            ours = values(model)
            gossip.finish()
            found[theirs, kind] = (distance(ours, expected), distance(ours, first))
    return found


def _decent_dp(rank: int, topology: str, per_host: int, kind: str) -> list[Tensor]:
    from decent_dp.ddp import DecentralizedDataParallel as Theirs  # noqa: PLC0415 - not on every Python
    from decent_dp.optim import AccumAdamW as TheirAccumAdamW  # noqa: PLC0415
    from loguru import logger  # noqa: PLC0415

    logger.remove()
    optimizer: Any = torch.optim.Adam if kind == "Adam" else TheirAccumAdamW

    def make(named: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = optimizer([tensor for _, tensor in named], lr=1e-3, weight_decay=0.01)
        return made

    model = network(0)
    wrapped = Theirs(model, make, topology=topology, _local_world_size=per_host)
    for step in range(STEPS):
        loss_of(wrapped, rank, step).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        wrapped(torch.zeros(1, FEATURES))  # a forward pass makes no step
    return values(model)


def script(rank: int) -> Any:
    """A script of decent-dp: `zero_grad` between forward and backward pass, then evaluation of the mean. Returns loss
    before and after, steps, and whether reverting restores all."""
    model = Network(seed=rank)
    wrapped = DecentralizedDataParallel(model, optim_fn_adamw, topology="one-peer-exp", sync_buffer_in_global_avg=True)
    first = loss_of(wrapped, rank, 0).item()
    for step in range(60):
        loss = loss_of(wrapped, rank, step)
        wrapped.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
    wrapped.eval()
    before = values(model)
    apart = wrapped.global_avg(will_revert=True, return_d2c=True)
    averaged = values(model)
    wrapped.revert_global_avg()
    restored = all(torch.equal(a, b) for a, b in zip(values(model), before, strict=True))
    wrapped.global_avg(will_revert=False)
    kept = distance(values(model), averaged)
    wrapped.gossip.finish()
    finished = distance(values(model), averaged)
    return {
        "losses": (first, loss.item()),
        "steps": wrapped.gossip.steps,
        "training": wrapped.training,
        "restored": restored,
        "apart": apart,
        "kept": max(kept, finished),
    }


def in_the_first_iteration(rank: int) -> Any:
    """`global_avg` before any step, with one rank on each host in the topology of hosts. Returns the distance."""
    model = network(rank)
    wrapped = DecentralizedDataParallel(
        model, optim_fn_adamw, topology="alternating-exp-ring", _local_world_size=1, patience_s=30.0
    )
    found = wrapped.global_avg(return_d2c=True)
    wrapped.revert_global_avg()
    wrapped.gossip.finish()
    return found


def scaler_and_clipping(rank: int) -> Any:
    """A scaler that starts far too high, gradients that are clipped to a norm of 1, and SGD with a rate of 1. Returns
    the scale, which is that of all parameters, and how far the first step went, which is the clipped norm."""
    model = network(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10_000)
    wrapped = DecentralizedDataParallel(
        model,
        lambda named: torch.optim.SGD([tensor for _, tensor in named], lr=1.0),
        scaler=scaler,
        grad_clip_norm=1.0,
        bucket_size_in_mb=0,
    )
    before = values(model)
    loss: Any = scaler.scale(1000 * loss_of(wrapped, rank, 0))
    loss.backward()
    moved = torch.stack([(a - b).norm() for a, b in zip(values(model), before, strict=True)]).norm().item()
    for step in range(1, 12):
        loss = scaler.scale(loss_of(wrapped, rank, step))
        if rank == 2 and step == 5:
            loss = loss * torch.inf
        loss.backward()
    wrapped.gossip.finish()
    return moved, scaler.get_scale(), wrapped.gossip.steps


def accumulation(rank: int) -> Any:
    """Four backward passes a step, the last of which steps, and a schedule. Returns steps, rate, and whether three
    steps equal those of the sums of the gradients."""
    model, plain = network(0), network(0)
    make = torch.optim.SGD
    wrapped = DecentralizedDataParallel(
        model,
        lambda named: make([tensor for _, tensor in named], lr=0.1),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    )
    wrapped.set_adaptive_factor(0.0)  # so that the rank goes alone
    optimizer = make(plain.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(12):
        wrapped.set_accumulate_grad(step % 4 < 3)
        loss_of(wrapped, rank, step).backward()  # type: ignore[no-untyped-call]
        loss_of(plain, rank, step).backward()  # type: ignore[no-untyped-call]
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    wrapped.gossip.finish()
    return wrapped.gossip.steps, wrapped.get_lr(), distance(values(model), values(plain))


def quietly(scene: Callable[[int], Any]) -> Callable[[int], Any]:
    """The scene with its deprecation warnings of other packages left out."""

    def played(rank: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return scene(rank)

    played.__name__ = scene.__name__
    return played


def _there() -> bool:
    try:
        import decent_dp  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


SCENES: tuple[Callable[[int], Any], ...] = (
    script,
    in_the_first_iteration,
    scaler_and_clipping,
    accumulation,
    *((quietly(parity),) if _there() else ()),
)
