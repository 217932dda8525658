"""Runs targets in this process. Inputs that reach new code are damaged further, and can be kept."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz import corpus
from fuzz.coverage import Coverage
from fuzz.target import FuzzFailure, Target, Tried, try_one, try_one_traced

MEASURED_EVERY = 32
"""Of how many inputs the memory of one is measured."""
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
    lines: int = 0
    kept: int = 0
    tried: dict[str, Tally] = field(default_factory=dict)
    finds: dict[str, str] = field(default_factory=dict)
    """The first find of each target and type of error."""

    @property
    def inputs(self) -> int:
        return sum(one.inputs for one in self.tried.values())

    def __str__(self) -> str:
        rows = [f"{name:<30} {tally}" for name, tally in self.tried.items()]
        total = (
            f"{self.inputs:,} inputs in this process in {self.seconds:.0f} s: nothing but typed errors; "
            f"{self.lines:,} lines of thinwire reached, {self.kept} inputs kept"
        )
        return "\n".join([*rows, *(f"FOUND {text}" for text in self.finds.values()), total])


def fuzz(
    targets: Sequence[Target],
    inputs: int,
    seed: int,
    *,
    until: float = float("inf"),
    keep_in: Path | None = None,
    go_on: bool = False,
    equal_time: bool = False,
) -> Summary:
    """Try inputs on the targets in turn, up to a number or a time.monotonic().

    Raises FuzzFailure at the first find, unless `go_on`. keep_in: a folder for the inputs that reach new code.
    equal_time: the targets share the time, not the inputs, so that slow ones do not take most of it."""
    rng, began, printed = random.Random(seed), time.monotonic(), time.monotonic()
    summary = Summary(tried={target.name: Tally() for target in targets})
    live = {target.name: [*target.valid, *corpus.kept(target.name)] for target in targets}
    coverage, spent = Coverage(), dict.fromkeys(live, 0.0)
    try:
        for target in targets:
            for data in live[target.name]:
                coverage.ran(lambda target=target, data=data: _attempt(target, data, summary, go_on))  # type: ignore[misc]
        for number in range(inputs):
            started = time.perf_counter()
            target = min(targets, key=lambda one: spent[one.name]) if equal_time else targets[number % len(targets)]
            data = target.damaged(rng, live[target.name])
            if coverage.ran(lambda: _attempt(target, data, summary, go_on)):  # noqa: B023 - it runs at once
                _remember(live[target.name], data, rng)
                summary.kept += keep_in is not None and corpus.keep(target.name, data, keep_in)
            spent[target.name] += time.perf_counter() - started
            if time.monotonic() > until:
                break
            if sys.stderr.isatty() and time.monotonic() - printed > PROGRESS_EVERY_S:
                printed = time.monotonic()
                print(f"{number + 1:,} inputs", end="\r", file=sys.stderr, flush=True)
    finally:
        coverage.close()
    summary.seconds, summary.lines = time.monotonic() - began, len(coverage.lines)
    return summary


def _attempt(target: Target, data: bytes, summary: Summary, go_on: bool) -> None:
    tally = summary.tried[target.name]
    try:
        if tally.inputs % MEASURED_EVERY == 0:
            found = try_one_traced(target, data)
            tally.memory = max(tally.memory, found.memory / target.memory_max)
        else:
            found = try_one(target, data)
    except FuzzFailure as failure:
        if not go_on:
            raise
        summary.finds.setdefault(f"{target.name}{failure.__cause__!r:.40}", str(failure)[:2000])
        found = Tried("a find")
    tally.read += found.read
    if not found.read:
        tally.refused[found.refusal] += 1


def _remember(live: list[bytes], data: bytes, rng: random.Random) -> None:
    if len(live) < LIVE_MAX:
        live.append(data)
    else:
        live[rng.randrange(len(live))] = data
