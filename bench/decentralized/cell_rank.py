"""One rank of a cell of `bench.decentralized.cells`: steps of each method in turn, and prints their seconds as JSON."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.decentralized.rank import RESULT
from bench.decentralized.workload import PacedModel, loss_of, parameters_of
from thinwire import Gossip

ALONE, DDP, DENSE, ONE_BIT = "alone", "all-reduce, DDP", "gossip, dense", "gossip, one bit"
BARE = "gloo alone"
WARMUP = 4
"""Steps that are not timed: each of a rank's two edges carries two messages, and TCP has found its rate."""
CODECS = {DENSE: "dense", ONE_BIT: "sign"}


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.decentralized.cell_rank", description=__doc__)
    for name, kind in (("rank", int), ("ranks", int), ("steps", int), ("width", int), ("compute", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--store", required=True, metavar="HOST:PORT", help="address of rank 0")
    parser.add_argument("--device", required=True, help="network device of the exchange")
    given = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = given.device
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{given.store}", rank=given.rank, world_size=given.ranks)
    found = {name: _step_s(name, given.compute, given.width, given.steps) for name in (ALONE, DDP, *CODECS)}
    found[BARE] = _bare_step_s(given)
    print(RESULT + json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def _step_s(name: str, compute_s: float, width: int, steps: int) -> float:
    """Mean seconds of a step on the slowest rank."""
    model = PacedModel(compute_s, width)
    forward = DistributedDataParallel(model) if name == DDP else model
    optimizer = torch.optim.Adam(model.parameters())
    end: Callable[[], None] = _nothing
    if name in CODECS:
        end = Gossip(model, optimizer, topology="one-peer-exponential", per_host=1, codec=CODECS[name]).finish
    began = 0.0
    for step in range(WARMUP + steps):
        if step == WARMUP:
            dist.barrier()
            began = time.perf_counter()
        optimizer.zero_grad()
        loss_of(forward, width).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    taken = torch.tensor([(time.perf_counter() - began) / steps])
    end()
    dist.barrier()
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()


def _bare_step_s(given: argparse.Namespace) -> float:
    """The same for the bytes of dense gossip alone: a message to the peer and one from it, while the rank sleeps."""
    sent, received = (torch.zeros(parameters_of(given.width)) for _ in range(2))
    shifts = (given.ranks - 1).bit_length()
    began = 0.0
    for step in range(WARMUP + given.steps):
        if step == WARMUP:
            dist.barrier()
            began = time.perf_counter()
        peer = given.rank ^ (1 << step % shifts)
        works = dist.irecv(received, peer, tag=1), dist.isend(sent, peer, tag=1)
        time.sleep(given.compute)
        for work in works:
            assert work is not None, "all ranks are in the group"
            work.wait()
    taken = torch.tensor([(time.perf_counter() - began) / given.steps])
    dist.barrier()
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()


def _nothing() -> None:
    pass


if __name__ == "__main__":
    main()
