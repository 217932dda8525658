"""The baseline: PyTorch's DistributedDataParallel over gloo, with `no_sync` except in the last micro-batch.

A rank is a process in the namespace of its node. With `--exchange` it first measures X, the time of an all-reduce of
all parameters in float32, each after the computation of a round as in training; then it trains. Without `--exchange` it
is the control: the same passes, and no communication.

In the last micro-batch, backward pass and exchange overlap, so its computation cannot be measured separately. It is
counted as the mean of the micro-batches under `no_sync`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.wide_area.figures import SystemFigures
from bench.wide_area.hosts import Hosts
from bench.wide_area.line import DEVICE
from bench.wide_area.loss_module import LossModule
from bench.wide_area.programs import Programs, cpu_s, module
from bench.wide_area.workload import MICRO_BATCH, PRESET, SEED, THREADS
from deploy.local_swarm.processes import Process, SwarmError
from thinwire_proto.models import BYTE_PRESETS

STORE_PORT = 29500
RESULT = "result "
PATIENCE = timedelta(minutes=30)
ROUNDS_WARMUP = 2
EXCHANGES_TIMED = 5
ROUNDS_MIN = 8
"""With losses, the time of a round differs much from that of the next."""
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class RankResult:
    """Result of one rank in its measured window."""

    tokens: int
    rounds: int
    wall_s: float
    compute_s: float
    sent_bytes: int
    received_bytes: int
    exchanges_s: list[float]
    """Times of separate all-reduces."""
    line_cpu_s: float


def measure_ddp(hosts: Hosts, samples: int, seconds: float, folder: Path) -> tuple[SystemFigures, float]:
    """Measure DistributedDataParallel: its figures, and the seconds of an exchange."""
    results = _run(hosts, "ddp", samples, seconds, folder, exchange=True)
    # ranks that leave the barrier early wait for the last one, so its time counts
    exchanges_s = [min(times) for times in zip(*(result.exchanges_s for result in results), strict=True)]
    return _sum(results, exchanges=results[0].rounds), statistics.median(exchanges_s)


def measure_control(hosts: Hosts, samples: int, seconds: float, folder: Path) -> SystemFigures:
    """Measure the same passes on all nodes at once, without an exchange."""
    return _sum(_run(hosts, "control", samples, seconds, folder, exchange=False), exchanges=0)


def _run(hosts: Hosts, name: str, samples: int, seconds: float, folder: Path, *, exchange: bool) -> list[RankResult]:
    with Programs(folder) as programs:
        for rank, host in enumerate(hosts.nodes):
            command = [*module("bench.wide_area.ddp"), "--rank", str(rank), "--ranks", str(len(hosts.nodes))]
            command += ["--store", f"{hosts.nodes[0].address}:{STORE_PORT}"]
            command += ["--samples", str(samples), "--seconds", str(seconds), "--line-pid", str(hosts.line_pid)]
            command += ["--exchange"] if exchange else []
            programs.start(f"{name}-{rank}", host.inside(*command))
        programs.wait_until_all_end(name, PATIENCE.total_seconds())
        return [_result(process) for process in programs.all]


def _result(process: Process) -> RankResult:
    for line in process.text().splitlines():
        if line.startswith(RESULT):
            return RankResult(**json.loads(line.removeprefix(RESULT)))
    raise SwarmError(f"{process.name} ended without a result:\n{process.tail(20)}")


def _sum(results: list[RankResult], exchanges: int) -> SystemFigures:
    return SystemFigures(
        nodes=len(results),
        wall_s=max(result.wall_s for result in results),
        tokens=sum(result.tokens for result in results),
        exchanges=exchanges,
        contributions=sum(result.rounds for result in results),
        compute_s=sum(result.compute_s for result in results),
        sent_bytes=sum(result.sent_bytes for result in results),
        received_bytes=sum(result.received_bytes for result in results),
        line_cpu_s=results[0].line_cpu_s,
    )


# a rank


class Rank:
    """The computation of one rank. Tokens are random, because their values do not affect the time."""

    def __init__(self, rank: int, samples: int, exchange: bool) -> None:
        self._passes = max(2, samples // MICRO_BATCH)
        self._generator = torch.Generator().manual_seed(SEED + rank)
        self._exchange = exchange
        loss = LossModule()
        self.parameters = sum(parameter.numel() for parameter in loss.parameters())
        self._ddp = DistributedDataParallel(loss) if exchange else None
        self._module: nn.Module = self._ddp or loss
        self._optimizer = torch.optim.SGD(loss.parameters(), lr=LEARNING_RATE, momentum=0.9)

    @property
    def tokens(self) -> int:
        """Tokens of a round."""
        return self._passes * MICRO_BATCH * BYTE_PRESETS[PRESET].context

    def round(self) -> float:
        """One round: all passes, the exchange in the last one, and a step. Returns the seconds of computation."""
        compute_s = self.compute(self._passes - 1)
        compute_s *= self._passes / (self._passes - 1)
        self._pass()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return compute_s

    def compute(self, passes: int | None = None) -> float:
        """Forward and backward passes without an exchange; by default a whole round. Returns seconds."""
        began = time.perf_counter()
        with self._ddp.no_sync() if self._ddp else nullcontext():
            for _ in range(passes or self._passes):
                self._pass()
        return time.perf_counter() - began

    def clear_gradients(self) -> None:
        self._optimizer.zero_grad()

    def _pass(self) -> None:
        spec = BYTE_PRESETS[PRESET]
        tokens = torch.randint(spec.vocabulary, (MICRO_BATCH, spec.context + 1), generator=self._generator)
        self._module(tokens).backward()


def main() -> None:
    arguments = _arguments()
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    torch.set_num_threads(THREADS)
    dist.init_process_group(
        "gloo", f"tcp://{arguments.store}", timeout=PATIENCE, rank=arguments.rank, world_size=arguments.ranks
    )
    rank = Rank(arguments.rank, arguments.samples, arguments.exchange)
    measure = _train if arguments.exchange else _compute
    result = measure(rank, arguments.seconds, arguments.line_pid)
    print(RESULT + json.dumps(asdict(result)), flush=True)
    dist.barrier()  # rank 0 must not end first, because it holds the store
    dist.destroy_process_group()


def _compute(rank: Rank, seconds: float, line_pid: int) -> RankResult:
    """The control: all ranks compute at the same time, without an exchange."""
    for _ in range(ROUNDS_WARMUP):
        rank.compute()
    dist.barrier()
    before, compute_s, rounds = CounterReading(line_pid), 0.0, 0
    while time.perf_counter() - before.at_s < seconds:
        compute_s += rank.compute()
        rank.clear_gradients()
        rounds += 1
    return before.result(rank.tokens, rounds, compute_s, [])


def _train(rank: Rank, seconds: float, line_pid: int) -> RankResult:
    for _ in range(ROUNDS_WARMUP):
        rank.round()
    exchanges_s, round_s = _time_exchanges(rank)
    rounds = torch.tensor([max(ROUNDS_MIN, math.ceil(seconds / round_s))])
    dist.broadcast(rounds, 0)  # equal on all ranks
    dist.barrier()
    before, compute_s = CounterReading(line_pid), 0.0
    for _ in range(int(rounds)):
        compute_s += rank.round()
    return before.result(rank.tokens, int(rounds), compute_s, exchanges_s)


def _time_exchanges(rank: Rank) -> tuple[list[float], float]:
    """The seconds of each exchange, and an estimate of the seconds of a round."""
    exchanges_s, computes_s = [], []
    flat = torch.zeros(rank.parameters)
    for _ in range(EXCHANGES_TIMED):
        computes_s.append(rank.compute())
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(flat)
        exchanges_s.append(time.perf_counter() - began)
    rank.clear_gradients()
    return exchanges_s, statistics.median(computes_s) + statistics.median(exchanges_s)


class CounterReading:
    """The kernel's counters and the clock at the beginning of a window."""

    def __init__(self, line_pid: int) -> None:
        self._line_pid, self._line_s, self._bytes = line_pid, cpu_s(line_pid), self._traffic()
        self.at_s = time.perf_counter()

    def _traffic(self) -> tuple[int, int]:
        folder = Path("/sys/class/net") / DEVICE / "statistics"
        return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())

    def result(self, tokens: int, rounds: int, compute_s: float, exchanges_s: list[float]) -> RankResult:
        wall_s = time.perf_counter() - self.at_s
        sent, received = (now - then for now, then in zip(self._traffic(), self._bytes, strict=True))
        line_s = cpu_s(self._line_pid) - self._line_s
        return RankResult(rounds * tokens, rounds, wall_s, compute_s, sent, received, exchanges_s, line_s)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.wide_area.ddp", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--store", required=True, metavar="HOST:PORT", help="address of rank 0")
    parser.add_argument("--samples", type=int, required=True, help="samples for each rank and exchange")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--exchange", action="store_true")
    parser.add_argument("--line-pid", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
