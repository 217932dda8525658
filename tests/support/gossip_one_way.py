"""What ranks do in the tests of one-way edges: each function is a scene, played by all ranks together."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from support.gossip_deaths import train_on
from support.gossip_problem import Network, distance, equal, loss_of, scaled_step, train, values
from support.gossip_ranks import RANKS
from support.gossip_scenes import run_training
from support.one_way_topologies import EACH_TO_ALL, EXPONENTIAL, UNEVEN, register
from thinwire import Gossip
from thinwire_proto.errors import ConfigError


def by_hand(rank: int) -> Any:
    """Training, and beside it the same steps of all ranks in this process by the formula of push-sum, in float64; with
    edges both ways, all weights stay 1. Returns for each topology the largest difference, and this rank's weight."""
    found = []
    for topology in ("ring", EXPONENTIAL, UNEVEN):
        model = Network(seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        gossip = Gossip(model, optimizer, topology=topology)
        train(model, optimizer, rank, 0, 20)
        models = [Network(seed=0, dtype=torch.float64) for _ in range(RANKS)]
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01) for one in models]
        weights = torch.ones(RANKS, dtype=torch.float64)
        for step in range(20):
            for node, (one, its) in enumerate(zip(models, optimizers, strict=True)):
                its.zero_grad()
                loss_of(one, node, step, torch.float64).backward()  # type: ignore[no-untyped-call]
            if step:
                matrix = torch.tensor(gossip.topology.at(step - 1).matrix())
                for tensors in zip(*(one.parameters() for one in models), strict=True):
                    masses = torch.stack([weight * t.detach() for weight, t in zip(weights, tensors, strict=True)])
                    mixed = torch.tensordot(matrix, masses, 1)
                    for tensor, value, weight in zip(tensors, mixed, matrix @ weights, strict=True):
                        if tensor.requires_grad:
                            tensor.data.copy_(value / weight)
                weights = matrix @ weights
            for its in optimizers:
                its.step()
        expected = [tensor.detach() for tensor in models[rank].parameters()]
        found.append((distance([tensor.detach() for tensor in model.parameters()], expected), float(weights[rank])))
        gossip.finish()
    return found


def mean_stays(rank: int) -> Any:
    """Parameters that differ at first, and a rate of 0. In turn, each rank stops until all others are ahead of it by
    more than the slack. For each case: the bias at the end, its mean inside `averaged` while messages are late, the
    number of messages that were late, and the peers left out."""
    store = distributed_c10d._get_default_store()
    found = []
    for topology, slack, codec in (
        (EXPONENTIAL, 0, "dense"),
        (UNEVEN, 0, "dense"),
        (EXPONENTIAL, 2, "dense"),
        (UNEVEN, 1, "dense"),
        (EXPONENTIAL, 0, "bf16"),
        (EXPONENTIAL, 0, "int8"),
    ):
        case = f"{topology}.{slack}.{codec}"
        model = Network(seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        gossip = Gossip(model, optimizer, topology=topology, slack=slack, codec=codec)
        model.out.bias.data.fill_(float(rank))
        for step in range(60):
            loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            store.set(f"{case}.{rank}.{step}", "begun")
            if step < 50 and step % 10 == 9 and step // 10 % RANKS == rank:
                store.wait([f"{case}.{other}.{step + 1 + slack}" for other in range(RANKS) if other != rank])
        with gossip.averaged():
            mean = model.out.bias.item()
        late, left_out = gossip.stats()["late"], gossip.stats()["left_out"]
        gossip.finish()
        found.append((model.out.bias.item(), mean, late, left_out))
    return found


def resuming(rank: int) -> Any:
    """For several settings, and with ranks that are behind when all save: the numbers of messages that were in early
    and of open turns, and whether a run that was loaded from the states equals the one that went on, to the bit."""
    found = []
    for settings in (
        {"topology": EXPONENTIAL},
        {"topology": UNEVEN},
        {"topology": EXPONENTIAL, "codec": "int8"},
        {"topology": EACH_TO_ALL, "codec": "bf16"},
    ):
        skips = {1: (4, 6), 2: (6,)}.get(rank, ())
        last = 14 + len(skips)
        whole, saved = run_training(rank, settings, None, 0, last, save_at=7, skips=skips)
        again, _ = run_training(rank, settings, saved, 7, last)
        state = torch.load(io.BytesIO(saved), weights_only=True)["gossip"]["exchange"]
        early = sum(one["iteration"] > state["iteration"] for one in state["arrived"])
        found.append((early, len(state["open"]), equal(whole, again)))
    return found


def averaging(rank: int) -> Any:
    """Ranks of different weights, of which one is behind, average for good, and go on with a rate of 0. Returns the
    values after averaging, the bias then and at the end, and whether a block of `averaged` restores all bits."""
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gossip = Gossip(model, optimizer, topology=UNEVEN, slack=1)
    train(model, optimizer, rank, 0, 8 if rank == 1 else 9)
    before = values(model)
    with gossip.averaged():
        pass
    restored = equal(values(model), before)
    gossip.average()
    after, bias = values(model), model.out.bias.item()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, rank, 9, 30)
    gossip.finish()
    return after, bias, model.out.bias.item(), restored


def ending_apart(rank: int) -> Any:
    """Rank 1 ends after three steps, when rank 3 has sent it a message of its fourth. Rank 2's scaler skips a step. The
    rate is 0, and biases differ. Returns this rank's weight and bias after `finish`."""
    store = distributed_c10d._get_default_store()
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    gossip = Gossip(model, optimizer, topology=EXPONENTIAL)
    model.out.bias.data.fill_(float(rank))
    for step in range(3 if rank == 1 else 6):
        scaled_step(model, optimizer, scaler, rank, step, rank == 2 and step == 4)
        store.set(f"apart.{rank}.{step}", "begun")
    if rank == 1:
        store.wait(["apart.3.3"])
    gossip.finish()
    return gossip._exchange.weight, model.out.bias.item()


def starting(rank: int) -> Any:
    """Equal parameters and a rate of 0. Returns for each codec the largest change of a parameter."""
    found = []
    for codec in ("dense", "bf16", "int8"):
        model = Network(seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        before = values(model)
        gossip = Gossip(model, optimizer, topology=EXPONENTIAL, codec=codec)
        train(model, optimizer, rank, 0, 6)
        gossip.finish()
        found.append(distance(values(model), before))
    return found


def unlike(rank: int) -> Any:
    """A state of edges with both ends, and a damaged one, in a Gossip with one-way edges. Returns the errors."""
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = []
    for topology in ("ring", EXPONENTIAL):
        gossip = Gossip(model, optimizer, topology=topology)
        states.append(gossip.state_dict())
        gossip.finish()
    states.append(states[1] | {"exchange": states[1]["exchange"] | {"mass": torch.zeros(3)}})
    gossip = Gossip(model, optimizer, topology=EXPONENTIAL)
    errors = []
    for state in (states[0], states[2]):
        try:
            gossip.load_state_dict(state)
        except ConfigError as error:
            errors.append(str(error))
    dist.barrier()
    gossip.finish()
    return errors


def killed(rank: int) -> Any:
    """A rank is killed between two steps. Returns what `train_on` does."""
    return train_on(rank, EXPONENTIAL)


SCENES: tuple[Callable[[int], Any], ...] = (
    register,
    by_hand,
    mean_stays,
    resuming,
    averaging,
    ending_apart,
    starting,
    unlike,
    killed,
)
