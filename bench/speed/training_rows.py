"""The rows about training on two threads: tokens a second and waiting for data, on a quiet machine and beside busy
processes. The baseline is AdamW on the same model.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator

from bench.speed.neighbours import BUSY, busy_cores
from bench.speed.row import BenchRow
from bench.speed.training import ROUND_S, Timed
from bench.wide_area.programs import module

SMALL, LARGE = "llama-10m", "llama-124m"
TURNS = 3
THREADS = 2
SHARE_WANTED, DATA_WANTED = 0.95, 0.01


def timed(model: str, turns: int, *more: str) -> Timed:
    command = [*module("bench.speed.training"), "--model", model, "--turns", str(turns), *more]
    return Timed.from_json(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def training_rows(found: Timed, topic: str, round_s: float) -> Iterator[BenchRow]:
    ours, theirs = found.tokens_a_second(round_s)
    shares = found.shares(round_s)
    what = f"tokens a second; {min(shares):.0%} to {max(shares):.0%} over {len(shares)} turns"
    wanted = SHARE_WANTED * theirs
    yield BenchRow(topic, what, ours, theirs, "/s", "AdamW", better="more", wanted=wanted)
    node, plain = (statistics.median(times) for times in (found.micro_batch, found.plain_micro_batch))
    yield BenchRow(topic, f"a micro-batch of {found.tokens:,} tokens", node, plain, "s", "AdamW")
    end, step = statistics.median(found.round_end), statistics.median(found.plain_step)
    yield BenchRow(topic, "everything else in a round", end, step, "s", "AdamW's step, fused")
    data = statistics.median(found.data)
    yield BenchRow(
        topic, "reading the tokens of a micro-batch", data, node, "s", "the micro-batch", wanted=DATA_WANTED * node
    )


def rows_of(model: str, turns: int, round_s: float) -> Iterator[BenchRow]:
    topic = f"training {model}, {THREADS} threads, rounds of {round_s:g} s"
    yield from training_rows(timed(model, turns, "--threads", str(THREADS)), topic, round_s)
    with busy_cores():
        found = timed(model, turns, "--threads", str(THREADS))
    yield from training_rows(found, f"{topic}, {BUSY}", round_s)


def rows() -> Iterator[BenchRow]:
    yield from rows_of(SMALL, TURNS, ROUND_S)
