"""One rank of the baseline: PyTorch's DistributedDataParallel over gloo, with `no_sync` but for the last micro-batch.

Run with `--exchange` it first times X, an all-reduce of as many float32 as the model has parameters, each after the
computing of a round as it is in training; then it trains. Without, it is the control: the same passes, and not a byte
in between.

In the last micro-batch, backward and exchange overlap, so what of it is computing cannot be told apart. It counts as
much as the mean of those under `no_sync`.
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
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.wide_area.programs import cpu_s
from bench.wide_area.workload import MICRO_BATCH, PRESET, SEED, THREADS
from thinwire_proto.models import PRESETS, build

RESULT = "result "
PATIENCE = timedelta(minutes=30)
ROUNDS_WARMUP = 2
EXCHANGES_TIMED = 3
ROUNDS_MIN = 3
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class RankResult:
    """What one rank did in its window."""

    tokens: int
    rounds: int
    wall_s: float
    compute_s: float
    sent_bytes: int
    received_bytes: int
    exchanges_s: list[float]
    """All-reduces by themselves, timed one after the other."""
    line_cpu_s: float


class Loss(nn.Module):
    """The model, with the loss as what it gives back: DDP wants its hooks around a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = build(PRESETS[PRESET])
        self.decoder.initialise(torch.Generator().manual_seed(SEED))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder.loss(tokens)


class Rank:
    """The computing of one rank. Tokens are drawn: what they say changes no time."""

    def __init__(self, rank: int, samples: int, exchange: bool) -> None:
        self._passes = max(2, samples // MICRO_BATCH)
        self._generator = torch.Generator().manual_seed(SEED + rank)
        self._exchange = exchange
        loss = Loss()
        self.parameters = sum(parameter.numel() for parameter in loss.parameters())
        self._ddp = DistributedDataParallel(loss) if exchange else None
        self._module: nn.Module = self._ddp or loss
        self._optimizer = torch.optim.SGD(loss.parameters(), lr=LEARNING_RATE, momentum=0.9)

    @property
    def tokens(self) -> int:
        """A round."""
        return self._passes * MICRO_BATCH * PRESETS[PRESET].context

    def round(self) -> float:
        """The passes of a round with the exchange at its end, and a step; returns the seconds of computing."""
        compute_s = self.compute(self._passes - 1)
        compute_s *= self._passes / (self._passes - 1)
        self._pass()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return compute_s

    def compute(self, passes: int | None = None) -> float:
        """Forward and backward, and nothing is exchanged; seconds. A whole round, unless told otherwise."""
        began = time.perf_counter()
        with self._ddp.no_sync() if self._ddp else nullcontext():
            for _ in range(passes or self._passes):
                self._pass()
        return time.perf_counter() - began

    def forget(self) -> None:
        self._optimizer.zero_grad()

    def _pass(self) -> None:
        spec = PRESETS[PRESET]
        tokens = torch.randint(spec.vocabulary, (MICRO_BATCH, spec.context + 1), generator=self._generator)
        self._module(tokens).backward()


def main() -> None:
    arguments = _arguments()
    os.environ["GLOO_SOCKET_IFNAME"] = arguments.device
    torch.set_num_threads(THREADS)
    dist.init_process_group(
        "gloo", f"tcp://{arguments.store}", timeout=PATIENCE, rank=arguments.rank, world_size=arguments.ranks
    )
    rank = Rank(arguments.rank, arguments.samples, arguments.exchange)
    measure = _train if arguments.exchange else _compute
    result = measure(rank, arguments.seconds, arguments.device, arguments.line_pid)
    print(RESULT + json.dumps(asdict(result)), flush=True)
    dist.barrier()  # whoever ends first would take the store away from the others
    dist.destroy_process_group()


def _compute(rank: Rank, seconds: float, device: str, line_pid: int) -> RankResult:
    """The control: computing side by side, without an exchange."""
    for _ in range(ROUNDS_WARMUP):
        rank.compute()
    dist.barrier()
    before, compute_s, rounds = Reading(device, line_pid), 0.0, 0
    while time.perf_counter() - before.at_s < seconds:
        compute_s += rank.compute()
        rank.forget()
        rounds += 1
    return before.result(rank.tokens, rounds, compute_s, [])


def _train(rank: Rank, seconds: float, device: str, line_pid: int) -> RankResult:
    for _ in range(ROUNDS_WARMUP):
        rank.round()
    exchanges_s, round_s = _time_exchanges(rank)
    rounds = torch.tensor([max(ROUNDS_MIN, math.ceil(seconds / round_s))])
    dist.broadcast(rounds, 0)  # all must do as many
    dist.barrier()
    before, compute_s = Reading(device, line_pid), 0.0
    for _ in range(int(rounds)):
        compute_s += rank.round()
    return before.result(rank.tokens, int(rounds), compute_s, exchanges_s)


def _time_exchanges(rank: Rank) -> tuple[list[float], float]:
    """Seconds of each, and of a round, about."""
    exchanges_s, computes_s = [], []
    flat = torch.zeros(rank.parameters)
    for _ in range(EXCHANGES_TIMED):
        computes_s.append(rank.compute())
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(flat)
        exchanges_s.append(time.perf_counter() - began)
    rank.forget()
    return exchanges_s, statistics.median(computes_s) + statistics.median(exchanges_s)


class Reading:
    """The kernel's counters and the clock at the begin of a window."""

    def __init__(self, device: str, line_pid: int) -> None:
        self._device, self._line_pid = device, line_pid
        self._line_s, self._bytes = cpu_s(line_pid), self._traffic()
        self.at_s = time.perf_counter()

    def _traffic(self) -> tuple[int, int]:
        folder = Path("/sys/class/net") / self._device / "statistics"
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
    parser.add_argument("--store", required=True, metavar="HOST:PORT", help="of rank 0")
    parser.add_argument("--device", required=True, help="the network device to exchange over")
    parser.add_argument("--samples", type=int, required=True, help="a rank and exchange")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--exchange", action="store_true")
    parser.add_argument("--line-pid", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
