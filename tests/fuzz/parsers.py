"""Runs targets in this process. Inputs that are refused in a new way are damaged further, and can be kept."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz import corpus
from fuzz.target import Target, Tried, try_one, try_one_traced

MEASURED_EVERY = 32
"""Of how many inputs the memory of one is measured."""
EACH_AT_LEAST = 60
LIVE_MAX = 400
"""Inputs of a target that are damaged further."""
PROGRESS_EVERY_S = 10.0


@dataclass
class Tally:
    """The outcomes of the inputs of one target. refused: by type of error. memory: the largest share of its bound."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    memory: float = 0.0

    @property
    def inputs(self) -> int:
        return self.read + self.refused.total()

    def __str__(self) -> str:
        refused = ", ".join(f"{error} {count:,}" for error, count in self.refused.most_common())
        return f"{self.inputs:>9,} inputs  {self.read:>9,} read  {self.memory:>5.0%} of its memory  refused: {refused}"


@dataclass
class Summary:
    seconds: float = 0.0
    refusals: int = 0
    kept: int = 0
    tried: dict[str, Tally] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        return sum(one.inputs for one in self.tried.values())

    def __str__(self) -> str:
        rows = [f"{name:<30} {tally}" for name, tally in self.tried.items()]
        total = (
            f"{self.inputs:,} inputs in this process in {self.seconds:.0f} s: nothing but typed errors; "
            f"{self.refusals:,} kinds of refusal, {self.kept} inputs kept"
        )
        return "\n".join([*rows, total])


def fuzz(
    targets: Sequence[Target], inputs: int, seed: int, *, until: float = float("inf"), keep_in: Path | None = None
) -> Summary:
    """Try inputs on the targets, up to a number or a time.monotonic(). Raises FuzzFailure at the first find.

    After EACH_AT_LEAST inputs each, the targets share the time, so that slow ones do not take most of it. keep_in: a
    folder for the inputs that are refused in a new way."""
    rng, began, printed = random.Random(seed), time.monotonic(), time.monotonic()
    summary = Summary(tried={target.name: Tally() for target in targets})
    live = {target.name: [*target.valid, *corpus.kept(target.name)] for target in targets}
    spent, seen = dict.fromkeys(live, 0.0), set[tuple[str, str, str]]()
    for target in targets:
        for data in live[target.name]:
            _try(target, data, summary, seen)
    for number in range(inputs):
        started = time.perf_counter()
        in_turn = number < EACH_AT_LEAST * len(targets)
        target = targets[number % len(targets)] if in_turn else min(targets, key=lambda one: spent[one.name])
        data = target.damaged(rng, live[target.name])
        if _try(target, data, summary, seen):
            _remember(live[target.name], data, rng)
            summary.kept += keep_in is not None and corpus.keep(target.name, data, keep_in)
        spent[target.name] += time.perf_counter() - started
        if time.monotonic() > until:
            break
        if sys.stderr.isatty() and time.monotonic() - printed > PROGRESS_EVERY_S:
            printed = time.monotonic()
            print(f"{number + 1:,} inputs", end="\r", file=sys.stderr, flush=True)
    summary.seconds, summary.refusals = time.monotonic() - began, len(seen)
    return summary


def _try(target: Target, data: bytes, summary: Summary, seen: set[tuple[str, str, str]]) -> bool:
    """Try an input. Returns whether it was refused in a new way."""
    tally = summary.tried[target.name]
    found: Tried
    if tally.inputs % MEASURED_EVERY == 0:
        found = try_one_traced(target, data)
        tally.memory = max(tally.memory, found.memory / target.memory_max)
    else:
        found = try_one(target, data)
    tally.read += found.read
    if found.read:
        return False
    tally.refused[found.refusal] += 1
    kind = (target.name, found.refusal, re.sub(r"[0-9a-f]+", "#", found.text)[:80])
    is_new = kind not in seen
    seen.add(kind)
    return is_new


def _remember(live: list[bytes], data: bytes, rng: random.Random) -> None:
    if len(live) < LIVE_MAX:
        live.append(data)
    else:
        live[rng.randrange(len(live))] = data
