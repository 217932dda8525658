"""Which runs the study makes, sorted by what matters most.

The next run depends on the results so far. The rates of an arm are swept with few tokens. At each horizon it then runs
at the rates that are best at the shorter one so far, and in a second pass at the next lower rate as well, since long
runs often want a lower one. The best of those counts. All runs of a cell have equally many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bench.convergence.arms import (
    ADAMW,
    ARMS,
    DEFAULT,
    FINE_GROWING,
    FINER_GROWING,
    LOCAL_MUON,
    MERGED_FINE,
    MERGED_MUON,
    MUON,
    MUON_GROWING,
    MUON_GROWING_16,
    MUON_HALF,
    REFERENCE,
)
from bench.convergence.run import Result, Run, Size
from bench.studies import read

RESULTS = "runs.jsonl"
"""The file of results in a study's folder: one line a run."""
RATE_FACTOR = 1.5
RATES_MAX, PAIRS_MAX = 5, 13
"""Upper bound on the runs of a sweep, of a rate alone and with an outer rate."""
SAMPLES_A_NODE = 4
"""Runs of dense arms are entered as if each node had so many, since their losses do not depend on the nodes."""


class StudyError(Exception):
    """The folder holds what is no result of this study."""


class Rates(NamedTuple):
    """outer: the outer learning rate; 0: the arm has none."""

    rate: float
    outer: float = 0.0


@dataclass(frozen=True)
class Cell:
    """Runs that are compared with each other. tokens: of all nodes. rates_from: the cell that says with which rates a
    run begins: of fewer tokens, of other nodes or of a smaller model; None: this one is a sweep."""

    size: Size
    nodes: int
    tokens: int
    rates_from: Cell | None = None

    def run(self, arm: str, rates: Rates, seed: int = 1) -> Run:
        nodes = self.size.samples // SAMPLES_A_NODE if ARMS[arm].is_dense else self.nodes
        return Run(arm, rates.rate, seed, nodes, self.tokens, self.size, rates.outer)

    def losses(self, arm: str, results: Iterable[Result]) -> dict[Rates, float]:
        """The losses of an arm on the first seed, by rates; a loss that is no number is infinite."""
        found = {}
        for result in results:
            rates = Rates(result.run.rate, result.run.outer)
            if result.run.arm == arm and result.run == self.run(arm, rates):
                found[rates] = result.loss if math.isfinite(result.loss) else math.inf
        return found


@dataclass(frozen=True)
class Item:
    """An arm in a cell, at its best rates, with all that these depend on. is_settled: with the next lower rate as
    well."""

    arm: str
    cell: Cell
    seed: int = 1
    is_settled: bool = False


def sweep(
    losses: Mapping[Rates, float], middle: Rates, factor: float = RATE_FACTOR
) -> tuple[list[Rates], Rates | None]:
    """The rates that a sweep still needs, and the best if it needs none.

    A sweep goes from the middle to the best neighbour until none is better; neighbours differ by the factor in one
    rate. All arms have the same budget: RATES_MAX runs, or PAIRS_MAX with an outer rate. Rates have three digits.
    """
    most = PAIRS_MAX if middle.outer else RATES_MAX
    sides = ((-1, 0), (1, 0), (0, -1), (0, 1)) if middle.outer else ((-1, 0), (1, 0))
    known: dict[tuple[int, int], Rates] = {}
    best = (0, 0)
    while True:
        for side in ((0, 0), *sides):
            at = (best[0] + side[0], best[1] + side[1])
            if at not in known and len(known) < most:
                known[at] = Rates(_step(middle.rate, at[0], factor), _step(middle.outer, at[1], factor))
        missing = [rates for rates in known.values() if rates not in losses]
        if missing:
            return missing, None
        lowest = min(known, key=lambda at: losses[known[at]])
        if lowest == best or len(known) == most:
            return [], known[lowest]
        best = lowest


def _step(middle: float, steps: int, factor: float) -> float:
    return float(f"{middle * factor**steps:.3g}")


def middle_of(arm: str) -> Rates:
    return Rates(ARMS[arm].rate, ARMS[arm].outer)


def rates_of(arm: str, cell: Cell, results: Sequence[Result]) -> tuple[list[Run], Rates | None]:
    """The runs that must come first, and the best rates of an arm in a cell if there are none.

    An arm that is like another one has that one's, or the best of its own that ran here. Without a whole sweep here,
    the best rates are those of the cell that they are from. Where other rates ran here as well, they are the best of
    all those. Those of that cell need not run here if rates did that lie towards them and are worse than others.
    """
    here = cell.losses(arm, results)
    if like := ARMS[arm].like:
        first, start = rates_of(like, cell, results)
        return first, min(here, key=lambda rates: here[rates], default=start)
    missing, best = sweep(here, middle_of(arm))
    if best is not None or cell.rates_from is None:
        return [cell.run(arm, rates) for rates in missing], best
    first, start = rates_of(arm, cell.rates_from, results)
    if start is None or not here:
        return first, start
    best = min(here, key=lambda rates: here[rates])
    nearest = min(here, key=lambda rates: math.dist(_logs(rates), _logs(start)))
    return [], best if start in here or best != nearest else start


def _logs(rates: Rates) -> tuple[float, float]:
    return math.log(rates.rate), math.log(rates.outer or 1)


def lower(arm: str, rates: Rates) -> Rates:
    """The next lower rates of an arm's sweep."""
    middle = ARMS[arm].rate
    at = round(math.log(rates.rate / middle, RATE_FACTOR))
    return rates._replace(rate=_step(middle, at - 1, RATE_FACTOR))


def runs_of(item: Item, results: Sequence[Result]) -> Iterator[Run]:
    """The runs that an item needs as far as they are known, those that exist included."""
    cell = item.cell
    first, best = rates_of(item.arm, cell, results)
    yield from first
    if best is None:
        return
    here = cell.losses(item.arm, results)
    if best not in here:
        yield cell.run(item.arm, best)
    elif item.is_settled and lower(item.arm, best) not in here:
        yield cell.run(item.arm, lower(item.arm, best))
    else:
        yield cell.run(item.arm, best, item.seed)


def next_runs(items: Iterable[Item], results: Sequence[Result]) -> list[Run]:
    """The missing runs that are known by now, in the order in which to make them."""
    done = {result.run for result in results}
    return list(dict.fromkeys(run for item in items for run in runs_of(item, results) if run not in done))


def runs_left(items: Sequence[Item], results: Sequence[Result]) -> list[Run]:
    """All missing runs, if each sweep is best in its middle and no lower rate is better at its end."""
    known, left = list(results), []
    model = results[0]
    while runs := next_runs(items, known):
        for run in runs:
            middle = middle_of(run.arm)
            away = math.dist(_logs(Rates(run.rate, run.outer)), _logs(middle))
            known.append(replace(model, run=run, loss=100 + away))
        left += runs
    return left


def results_in(folder: Path) -> list[Result]:
    """The existing results; of a run that was repeated, the newest. Raises StudyError for results on other texts, or of
    arms that are gone or have other settings."""
    try:
        results = list({result.run: result for result in read(folder / RESULTS, Result)}.values())
    except ValueError as error:
        raise StudyError(str(error)) from None
    if len({result.corpus for result in results}) > 1:
        raise StudyError(
            f"{folder} has results on different texts (other versions of Python's library); use another --into"
        )
    for result in results:
        where = f"{folder / RESULTS}: {result.run.name}"
        if result.run.arm not in ARMS:
            raise StudyError(f"{where} is of an arm that the study no longer has; remove its line")
        now = ARMS[result.run.arm].settings
        changed = [name for name, value in result.settings.items() if value != now.get(name)]
        if changed:
            raise StudyError(
                f"{where} was run with another {', '.join(changed)} "
                "than the arm has now; remove its line, or use another --into"
            )
    return results


SWEEP, SHORT, LONG = 1 << 20, 1 << 22, 1 << 24
"""Tokens of the smaller model: 4.7 and 18.9 for each of its 886,000 parameters at the two horizons."""
LARGER_SHORT = 7 << 21
"""Of the larger model: 5.0 for each of its 2.9M parameters."""
FEW, MANY = Size(samples=16), Size(samples=64)
"""The batches of two and four nodes, and of sixteen and 64. A sweep has at least 256 steps of either."""
FOUR_SHORT = Cell(FEW, 4, SHORT, Cell(FEW, 4, SWEEP))
FOUR_LONG = Cell(FEW, 4, LONG, FOUR_SHORT)
TWO_LONG = Cell(FEW, 2, LONG, FOUR_LONG)
SINGLES = Cell(FEW, 16, SHORT, Cell(FEW, 16, SWEEP))
"""Sixteen nodes of one sample each."""
SIXTEEN_SHORT = Cell(MANY, 16, SHORT)
SIXTEEN_LONG = Cell(MANY, 16, LONG, SIXTEEN_SHORT)
SIXTY_FOUR_LONG = Cell(MANY, 64, LONG, SIXTEEN_LONG)
LARGER = Cell(replace(FEW, preset="byte-3m"), 4, LARGER_SHORT, FOUR_SHORT)
"""Its rates are those of the smaller model with as many tokens a parameter: a sweep of few tokens says less."""

OURS = (MERGED_FINE, MERGED_MUON, DEFAULT, LOCAL_MUON)
OTHERS = ("muloco", "diloco", "sparseloco", REFERENCE)
BEST_OTHER = OTHERS[0]
GOSSIP = tuple(name for name, arm in ARMS.items() if arm.kind == "gossip")
SEEDS = (1, 2, 3)
CLAIMS = (
    *((FOUR_LONG, arm) for arm in (MUON_HALF, MERGED_FINE, FINE_GROWING, FINER_GROWING, MERGED_MUON, DEFAULT)),
    *((FOUR_SHORT, arm) for arm in (ADAMW, MUON, MUON_HALF, *OURS, REFERENCE)),
    *((SIXTEEN_LONG, arm) for arm in (MUON_HALF, MERGED_FINE, LOCAL_MUON)),
    (SINGLES, "gossip-sign-muon-pull"),
    *((LARGER, arm) for arm in (MUON_HALF, MERGED_FINE)),
)
"""The cells that README quotes. They run on three seeds."""


def _items(arms: Iterable[str], *cells: Cell) -> list[Item]:
    return [Item(arm, cell) for cell in cells for arm in arms]


_ONCE = [
    *_items((ADAMW, MUON, MUON_HALF, *OURS), FOUR_LONG),
    *_items((MUON_HALF, MERGED_FINE), SIXTEEN_LONG),
    *_items((MUON_GROWING, MUON_GROWING_16, FINE_GROWING, FINER_GROWING), FOUR_LONG, FOUR_SHORT),
    *_items((ADAMW, DEFAULT), LARGER),
    *_items(OTHERS, FOUR_SHORT, FOUR_LONG),
    *_items((ADAMW, *OURS, BEST_OTHER), SIXTEEN_LONG),
    *_items((*OURS, BEST_OTHER), TWO_LONG, SIXTY_FOUR_LONG),
    *_items((*OURS, *GOSSIP), SINGLES),
    *_items(OURS, LARGER),
]
_GOAL = [Item(arm, FOUR_LONG, seed) for arm in (MUON_HALF, MERGED_FINE) for seed in SEEDS]
_SEEDS = [Item(arm, cell, seed) for cell, arm in CLAIMS for seed in SEEDS]
_SETTLED = [replace(item, is_settled=True) for item in _ONCE if item.cell in (FOUR_SHORT, FOUR_LONG, SIXTEEN_LONG)]
ITEMS = [*_GOAL, *_ONCE, *_SEEDS, *_SETTLED]
"""The study, the most important first: two to four nodes at the long horizon, then what README says."""
QUICK_ITEMS = _items((ADAMW, MUON, DEFAULT), Cell(Size(held_out=128), 4, 1 << 19, Cell(Size(held_out=128), 4, 1 << 18)))
