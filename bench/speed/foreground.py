"""Measures the slowdown that a node's training brings to the work of its machine's owner, by priority.

`python -m bench.speed.foreground` prints a line for each priority. The owner's work is a timed loop on each core; the
node's is training on all cores. Both are compared in turns: the node is stopped and continued, so that other load of
the machine meets both alike.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import statistics
import subprocess
import sys
import time
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized

import torch

from thinwire_node.limits.machine_load import NICE, set_priority

TURNS = 20
TURN_S = 1.0
BLOCK = bytes(1 << 14)
WARM_UP_S = 5.0


def train(priority: str) -> None:
    """Forward and backward passes of a small network on all cores, for ever, at a node's priority."""
    set_priority(priority)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    batch = torch.randn(256, 512)
    while True:
        model(batch).square().mean().backward()


def work(done: Synchronized[int]) -> None:
    """The owner's loop on one core."""
    while True:
        hashlib.sha256(BLOCK).digest()
        done.value += 1


def slowdown(priority: str) -> tuple[float, float]:
    """The share of the owner's speed that a node at this priority takes: the median over the turns, and half the
    distance of the quartiles."""
    command = [sys.executable, "-m", "bench.speed.foreground", "--train", priority]
    node = subprocess.Popen(command, start_new_session=True)
    context = get_context("spawn")
    counts = [context.Value("q", 0) for _ in range(os.cpu_count() or 1)]
    owners = [context.Process(target=work, args=(count,), daemon=True) for count in counts]
    try:
        for owner in owners:
            owner.start()
        while not all(count.value for count in counts):
            time.sleep(TURN_S)
        time.sleep(WARM_UP_S)
        lost = []
        for _ in range(TURNS):
            alone, beside = (_speed(counts, node, number) for number in (signal.SIGSTOP, signal.SIGCONT))
            lost.append(1 - beside / alone)
    finally:
        node.kill()
        for owner in owners:
            owner.kill()
    low, middle, high = statistics.quantiles(lost)
    return middle, (high - low) / 2


def _speed(counts: list[Synchronized[int]], node: subprocess.Popen[bytes], number: signal.Signals) -> float:
    node.send_signal(number)
    began, before = time.monotonic(), sum(count.value for count in counts)
    time.sleep(TURN_S)
    return (sum(count.value for count in counts) - before) / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.speed.foreground", description=__doc__)
    parser.add_argument("--train", choices=NICE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(arguments.train)
    for priority in NICE:
        middle, spread = slowdown(priority)
        print(f"{priority:8} the owner's work is slowed by {middle:.1%} (± {spread:.1%})", flush=True)


if __name__ == "__main__":
    main()
