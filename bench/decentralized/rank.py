"""One rank of the comparison: steps of each method in turn, and prints the seconds of each as JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.decentralized.workload import PacedModel, loss_of
from thinwire import Gossip

RESULT = "result "
WARMUP = 2
TIMED_EXCHANGES = 5
BUCKET_BYTES = 64 * 1024
"""Of DDP and decent-dp: about two layers, so that they can begin to send during the backward pass."""
PAUSE_S = 1.0
PAUSE_SHARE = 0.1
"""Of the last rank's steps, unless the command says otherwise."""


def main() -> None:
    arguments = _arguments()
    os.environ["GLOO_SOCKET_IFNAME"] = arguments.device
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{arguments.store}", rank=arguments.rank, world_size=arguments.ranks)
    message_s, reduce_s = _exchange_s(arguments.rank)
    found: dict[str, Any] = {"message_s": message_s, "reduce_s": reduce_s, "cells": []}
    for share in arguments.shares:
        compute_s = message_s / share
        found["cells"].append(
            {"share": share, "compute_s": compute_s}
            | {name: _time(method(compute_s), arguments.steps) for name, method in METHODS.items()}
        )
    for slack in arguments.pauses:
        every = round(1 / arguments.pause_share) if arguments.rank == arguments.ranks - 1 else 0
        paused = _time(_gossip(PAUSE_S, slack=slack, pauses_every=every), 3 * arguments.steps)
        found["cells"].append({"slack": slack, "pauses": paused})
    print(RESULT + json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def _exchange_s(rank: int) -> tuple[float, float]:
    """Seconds to exchange all parameters with one other rank, both ways at once, and to all-reduce them; of the slowest
    rank, the median."""
    flat = torch.zeros(sum(parameter.numel() for parameter in PacedModel(0.0).parameters()))
    other = torch.zeros_like(flat)

    def exchange() -> None:
        works = [dist.irecv(other, rank ^ 1), dist.isend(flat, rank ^ 1)]
        for work in works:
            assert work is not None
            work.wait()

    found = []
    for act in (exchange, lambda: dist.all_reduce(flat)):
        seconds = []
        for _ in range(TIMED_EXCHANGES):
            dist.barrier()
            began = time.perf_counter()
            act()
            taken = torch.tensor([time.perf_counter() - began])
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            seconds.append(taken.item())
        found.append(statistics.median(seconds))
    return found[0], found[1]


def _time(run: tuple[Callable[[], None], Callable[[], None]], steps: int) -> float:
    """Mean seconds of a step on the slowest rank. run: functions that step, and that end."""
    step, end = run
    for _ in range(WARMUP):
        step()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    taken = torch.tensor([(time.perf_counter() - began) / steps])
    end()
    dist.barrier()
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def _alone(compute_s: float) -> tuple[Callable[[], None], Callable[[], None]]:
    return _stepping(PacedModel(compute_s)), _nothing


def _ddp(compute_s: float) -> tuple[Callable[[], None], Callable[[], None]]:
    return _stepping(DistributedDataParallel(PacedModel(compute_s), bucket_cap_mb=BUCKET_BYTES / 2**20)), _nothing


def _gossip(
    compute_s: float, *, slack: int = 0, codec: str = "dense", pauses_every: int = 0
) -> tuple[Callable[[], None], Callable[[], None]]:
    model = PacedModel(compute_s)
    optimizer = _adam(model)
    gossip = Gossip(model, optimizer, topology="one-peer-exponential", per_host=1, slack=slack, codec=codec)
    return _stepping(model, optimizer, pauses_every), gossip.finish


def _decent_dp(compute_s: float) -> tuple[Callable[[], None], Callable[[], None]]:
    from decent_dp.ddp import DecentralizedDataParallel  # noqa: PLC0415 - not on every Python
    from loguru import logger  # noqa: PLC0415

    logger.remove()
    model = DecentralizedDataParallel(
        PacedModel(compute_s),
        lambda named: torch.optim.Adam([tensor for _, tensor in named]),
        topology="one-peer-exp",
        bucket_size_in_mb=BUCKET_BYTES / 2**20,  # below 1: the model is small
        _local_world_size=1,
    )

    def step() -> None:
        loss_of(model).backward()  # type: ignore[no-untyped-call]

    return step, lambda: model.global_avg(will_revert=False)


def _one_bit(compute_s: float) -> tuple[Callable[[], None], Callable[[], None]]:
    return _gossip(compute_s, codec="sign")


METHODS = {"alone": _alone, "gossip": _gossip, "one_bit": _one_bit, "ddp": _ddp, "decent_dp": _decent_dp}


def _stepping(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, pauses_every: int = 0
) -> Callable[[], None]:
    """A function that steps. pauses_every: steps from one pause to the next; 0: none."""
    optimizer = optimizer or _adam(model)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if pauses_every and steps % pauses_every == 0:
            time.sleep(PAUSE_S)
        optimizer.zero_grad()
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _nothing() -> None:
    pass


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.decentralized.rank", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--store", required=True, metavar="HOST:PORT", help="address of rank 0")
    parser.add_argument("--device", required=True, help="network device of the exchange")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--shares", type=float, nargs="*", required=True)
    parser.add_argument("--pauses", type=int, nargs="*", default=[], metavar="SLACK")
    parser.add_argument(
        "--pause-share", type=float, default=PAUSE_SHARE, help="of the last rank's steps, those with a pause"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
