"""Scenes of ranks that use torch.distributed beside the optimizers of this package: shards, and torch's own functions
for states of optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from support.gossip_problem import Network, equal, loss_of, train, values
from support.gossip_ranks import RANKS
from thinwire import AccumAdamW, DeMo, Gossip, Muon, NoiseCorrectedAdamW, muon_groups
from thinwire_proto.errors import ConfigError

WIDTH = 64
CPU = torch.device("cpu")


def _fully_sharded(model: nn.Module, mesh: Any) -> nn.Module:
    fully_shard(model, mesh=mesh)
    return model


SHARDED: dict[str, Callable[[nn.Module, Any], nn.Module]] = {
    "FSDP2": _fully_sharded,
    "FSDP1": lambda model, _: FullyShardedDataParallel(model, device_id=CPU),
    "FSDP1 with use_orig_params": lambda model, _: FullyShardedDataParallel(model, use_orig_params=True, device_id=CPU),
    "tensor parallel": lambda model, mesh: parallelize_module(model, mesh, {"0": ColwiseParallel()}),
}


def _with_gossip(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    Gossip(model, optimizer, topology="ring")
    return optimizer


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "Gossip": _with_gossip,
    "Muon": lambda model: Muon(muon_groups(model)),
    "AccumAdamW": lambda model: AccumAdamW(model.parameters()),
    "NoiseCorrectedAdamW": lambda model: NoiseCorrectedAdamW(model.parameters(), nodes=RANKS),
}


def refused(rank: int) -> Any:
    """The errors of optimizers that get shards, and of the first step of optimizers whose model was sharded after they
    were created. In the smallest of the models, some ranks have only empty shards."""
    mesh = init_device_mesh("cpu", (RANKS,))
    errors = {}
    for sharding, shard in SHARDED.items():
        for name, create in OPTIMIZERS.items():
            errors[name, sharding, "before"] = refusal_of(lambda: create(shard(matrices(), mesh)))  # noqa: B023 - at once
            if sharding != "tensor parallel":
                errors[name, sharding, "after"] = refusal_of(lambda: _sharded_later(create, shard, mesh, rank))  # noqa: B023
    return errors


def matrices() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))


def _sharded_later(create: Any, shard: Any, mesh: Any, rank: int) -> None:
    model = matrices()
    optimizer = create(model)
    model = shard(model, mesh)
    torch.manual_seed(rank)
    model(torch.randn(8, WIDTH)).square().mean().backward()
    if isinstance(optimizer, NoiseCorrectedAdamW):
        optimizer.keep_half()
    optimizer.step()


def refusal_of(act: Callable[[], Any]) -> str:
    """The text of the ConfigError that a call raises; empty if it raises none."""
    try:
        act()
    except ConfigError as error:
        return str(error)
    return ""


STEPPED: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "DeMo": lambda model: DeMo(model.parameters(), lr=1e-2),
    "DeMo with floats": lambda model: DeMo(model.parameters(), lr=1e-2, values="float", precondition="adam"),
    "Muon": OPTIMIZERS["Muon"],
    "AccumAdamW": lambda model: AccumAdamW(model.parameters(), lr=1e-2, accum_iter=3),
    "NoiseCorrectedAdamW": OPTIMIZERS["NoiseCorrectedAdamW"],
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2),
}
"""Optimizers that are as before after torch has looked at their state; all but DeMo with Gossip."""


def looked_at(rank: int) -> Any:
    """By optimizer, whether a run in which the first rank looks at the state before each step equals one in which
    nobody does."""
    return {name: equal(_run(create, rank, looks=rank == 0), _run(create, rank)) for name, create in STEPPED.items()}


def resumed(rank: int) -> Any:
    """By optimizer, whether a run that was saved and loaded by torch's functions equals the one that went on."""
    found = {}
    for name, create in (STEPPED | {"AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)}).items():
        saved: dict[str, Any] = {}
        whole = _run(create, rank, saved=saved)
        found[name] = equal(whole, _run(create, rank, first=4, state=saved))
    return found


def _run(
    create: Callable[[nn.Module], torch.optim.Optimizer],
    rank: int,
    *,
    first: int = 0,
    looks: bool = False,
    saved: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None,
) -> list[Any]:
    """Steps up to the seventh. saved: gets the states before the fifth. Returns values at the end, and the steps."""
    model = Network(seed=0)
    optimizer = create(model)
    gossip = None if isinstance(optimizer, DeMo) else Gossip(model, optimizer, topology="ring", gradient_pull=0.0)
    if state is not None:
        model.load_state_dict(state["model"])
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
        if gossip is not None:
            gossip.load_state_dict(state["gossip"])
    for step in range(first, 7):
        optimizer.zero_grad()
        if looks:
            get_optimizer_state_dict(model, optimizer)
        if saved is not None and step == 4:
            saved |= {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
            saved |= {"gossip": gossip.state_dict()} if gossip is not None else {}
            saved |= copy.deepcopy(saved)
        _step(model, optimizer, rank, step)
    steps = torch.tensor(7 if gossip is None else gossip.steps)
    if gossip is not None:
        gossip.finish()
    return [*values(model), steps]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    if not isinstance(optimizer, NoiseCorrectedAdamW):
        train(model, optimizer, rank, step, step + 1)
        return
    for half in range(2):
        (loss_of(model, rank, 100 * half + step) / 2).backward()  # type: ignore[no-untyped-call]
        optimizer.keep_half()
    optimizer.step()


SCENES: tuple[Callable[[int], Any], ...] = (looked_at, resumed, refused)
