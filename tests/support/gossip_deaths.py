"""Scenes in which a rank dies, or hangs for a while, beside those that go on."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.gossip_problem import Network, loss_of, train, values
from support.gossip_ranks import RANKS, STOPPED
from support.one_way_topologies import EACH_TO_ALL, SOON_UNHEARD, UNHEARD_UNTIL, register
from thinwire import Gossip
from thinwire_proto.errors import RemoteError

HUNG, KILLED = 3, 2
PATIENCE_S = 0.5
LONG_PATIENCE_S = 20.0
"""So long that a rank on a busy machine does not exceed half of it."""
HANGS_AT, TARGET_STEPS = 2, 6
"""Between these steps, a message that rank 2 sends to others comes after one that rank 3 has not taken: the latter is
sent in the iteration of HANGS_AT at the latest."""
assert TARGET_STEPS <= UNHEARD_UNTIL
SAVES_MAX = 8


def hanging(rank: int) -> Any:
    return _hanging(rank, "dense", torch.float64)


def hanging_int8(rank: int) -> Any:
    """The same where both ends of an edge hold copies, which a message that one end misses would tear apart."""
    return _hanging(rank, "int8", torch.float32)


def hanging_one_way(rank: int) -> Any:
    """The same over one-way edges, to all others at once, where what a rank does not hear of stays with its source."""
    return _hanging(rank, "dense", torch.float32, EACH_TO_ALL)


def hanging_target(rank: int) -> Any:
    """Rank 3 hangs, to which rank 2 sends, and of which nobody hears any more. Returns the ranks that this one has left
    out at some time.

    If somebody waited for rank 3, its own messages would be late by the whole patience. Those that wait for them would
    leave it out or not, depending on which of the two had begun to wait a millisecond earlier.
    """
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    dist.barrier()
    gossip = Gossip(model, optimizer, topology=SOON_UNHEARD, patience_s=LONG_PATIENCE_S)
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(RANKS)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    left_out: set[int] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(TARGET_STEPS):
            if step == HANGS_AT and rank == HUNG:
                await_file("heard")  # the one message of this rank may still be in its queue
                os.kill(os.getpid(), signal.SIGSTOP)
            if step == HANGS_AT and rank == 0:
                Path("heard").touch()  # a step mixes what the one before it has sent
            if step == HANGS_AT and rank != HUNG:
                await_file(STOPPED)
            loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            left_out |= gossip.stats()["left_out"].keys()
        if rank != HUNG:
            Path(f"trained.{rank}").touch()
        if rank == 0:
            for other in range(RANKS):
                if other != HUNG:
                    await_file(f"trained.{other}")
            wake(int(pids[HUNG]))
        gossip.finish()
    return sorted(left_out)


def _hanging(rank: int, codec: str, dtype: torch.dtype, topology: str = "complete") -> Any:
    """Rank 3 stops for longer than the others' patience, and is woken by rank 0 once it was left out. With a rate of 0
    and ranks that differ, the mean shows whether both ends mixed the same. Returns the end of this rank, and the
    errors of a save while rank 3 was away, and of one afterwards."""
    model = Network(seed=0, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    dist.barrier()  # on a busy machine, ranks come from the scene before at times further apart than this patience
    gossip = Gossip(model, optimizer, topology=topology, patience_s=PATIENCE_S, codec=codec)
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(RANKS)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    model.out.bias.data.fill_(float(rank))
    steps, left_out = 0, False
    errors: list[str] = []

    def step() -> None:
        nonlocal steps
        loss_of(model, rank, steps, dtype).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps += 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            step()
        if rank == HUNG:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            seen = [Path(f"seen.{topology}.{codec}.{other}") for other in range(RANKS) if other != HUNG]
            while not all(path.exists() for path in seen):
                step()
                if Path(STOPPED).exists() and HUNG in gossip.stats()["left_out"]:
                    Path(f"seen.{topology}.{codec}.{rank}").touch()
            left_out = True
            errors.append(refusal_of(gossip.state_dict))
            refused = [Path(f"refused.{topology}.{codec}.{other}") for other in range(RANKS) if other != HUNG]
            Path(f"refused.{topology}.{codec}.{rank}").touch()
            if rank == 0:
                while not all(path.exists() for path in refused):
                    step()
                wake(int(pids[HUNG]))
            while HUNG in gossip.stats()["left_out"]:
                step()
        if rank == HUNG:
            errors.append(refusal_of(gossip.state_dict))
        if topology != EACH_TO_ALL:  # there, ranks count by their weights, which differ now
            model.out.bias.data.add_(rank)
        for _ in range(20):
            step()
        dist.barrier()  # all has been sent, so that a busy machine cannot outlast the patience of `finish`
        errors.append(refusal_by_any(gossip.state_dict))
        gossip.finish()
    return model.out.bias.item(), left_out, [str(one.message) for one in caught], errors


def await_file(name: str) -> None:
    while not Path(name).exists():
        time.sleep(0.01)


def wake(pid: int) -> None:
    Path(STOPPED).unlink()  # before the rank can stop again
    os.kill(pid, signal.SIGCONT)


def refusal_by_any(save: Callable[[], Any]) -> str:
    """The refusal of any rank, if no try of a few is without one. A busy machine may outlast so short a patience."""
    for _ in range(SAVES_MAX):
        error = refusal_of(save)
        refused = torch.tensor([bool(error)])
        dist.all_reduce(refused, dist.ReduceOp.MAX)
        if not refused.item():
            return ""
    return error or "another rank was refused"


def refusal_of(save: Callable[[], Any]) -> str:
    try:
        save()
    except RemoteError as error:
        return str(error)
    return ""


def killed(rank: int) -> Any:
    return train_on(rank, "one-peer-exponential")


def train_on(rank: int, topology: str) -> Any:
    """Rank 2 is killed between two steps. Returns the others' losses, statistics, warnings and mean."""
    model = Network(seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    gossip = Gossip(model, optimizer, topology=topology)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer, rank, 0, 10)
        if rank == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        first = loss_of(model, rank, 0).item()
        train(model, optimizer, rank, 10, 60)
        with gossip.averaged() as present:
            averaged = values(model)
        saved = gossip.state_dict()
        train(model, optimizer, rank, 60, 70)
        gossip.finish()
    return {
        "learned": loss_of(model, rank, 0).item() < first,
        "stats": gossip.stats(),
        "warnings": [str(one.message) for one in caught],
        "present": present,
        "averaged": averaged,
        "saved": saved["steps"],
    }


SCENES: tuple[Callable[[int], Any], ...] = (register, hanging, hanging_int8, hanging_one_way, hanging_target, killed)
