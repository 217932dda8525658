"""The rows about training on two threads: tokens a second and waiting for data, on a quiet machine and beside busy
processes; with `--124m` also the peak memory of node and coordinator. The baseline is AdamW on the same model.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.speed.memory import peak_of, swarm_peaks
from bench.speed.neighbours import BUSY, busy_cores
from bench.speed.row import BenchRow
from bench.speed.training import LARGE_ROUND_S, ROUND_S, Timed
from bench.wide_area.programs import module
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.models import PRESETS
from thinwire_proto.task import task_of

SMALL, LARGE = "llama-10m", "llama-124m"
TURNS, TURNS_LARGE = 3, 5
THREADS = 2
SHARE_WANTED, DATA_WANTED = 0.95, 0.01
MEMORY_CONTEXT, MEMORY_STEPS = 16, 3
MEMORY_RUN = """
[model]
preset = "{model}"
context = {context}
[schedule]
steps = {steps}
warmup_steps = 1
[round]
samples = 1
length_ms = 600000
"""
"""The context is short, so that parameters and their companions dominate the memory."""


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


def rows(full: bool = False) -> Iterator[BenchRow]:
    yield from rows_of(SMALL, TURNS, ROUND_S)


def large_rows(full: bool = False) -> Iterator[BenchRow]:
    yield from rows_of(LARGE, TURNS_LARGE, LARGE_ROUND_S)


def memory_rows(full: bool = False, model: str = LARGE) -> Iterator[BenchRow]:
    """Peak memory of whole processes, interpreter and torch included."""
    if not Path("/proc/self/clear_refs").exists():
        print("peak memory is measured only on Linux", file=sys.stderr)
        return
    parameters = layout_of(task_of(PRESETS[model]).manifest()).parameters
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name:
        run = Path(name) / "run.toml"
        run.write_text(MEMORY_RUN.format(model=model, context=MEMORY_CONTEXT, steps=MEMORY_STEPS))
        node, coordinator = swarm_peaks(Path(name) / "swarm", run, MEMORY_STEPS)
        adamw = peak_of("adamw", run)
    topic = f"peak memory, {model}, whole processes"
    ours, theirs, coordinators = (peak / parameters for peak in (node, adamw, coordinator))
    yield BenchRow(topic, "a node", ours, theirs, "B/param", "torch AdamW alone")
    yield BenchRow(topic, "the coordinator", coordinators, theirs, "B/param", "torch AdamW alone")
