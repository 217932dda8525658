"""Plans the runs of a study, given the existing results.

First each arm's learning rate is swept, on one seed and fewer tokens. If the best rate lies at an edge, the sweep
extends beyond it. Then every arm runs at full length at its best rate (`best_rate`). Some arms run on several seeds and
with several numbers of nodes. All runs have equal tokens in total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.convergence.arms import ARMS, NODES_MATTER, RATE_FACTOR, RATES_MAX, REPEATED_ARMS
from bench.convergence.run import Result, Run, Size
from bench.studies import read

SWEEP_TOKENS, TOKENS = 1 << 20, 1 << 22
"""Of a sweep's run and of a full-length run, in the main study and with its fixed batch."""
RESULTS = "runs.jsonl"
"""The file of results in a study's folder: one line a run."""


class StudyError(Exception):
    """The folder holds what is no result, or the results of another study."""


@dataclass(frozen=True)
class Study:
    """The design of a study.

    sweep_tokens, tokens: of a run in the sweep, and of a full-length run. nodes: the number of nodes for all arms.
    other_nodes: further numbers of nodes for arms whose result depends on it.
    """

    arms: tuple[str, ...]
    size: Size
    sweep_tokens: int
    tokens: int
    seeds: tuple[int, ...]
    nodes: int = 4
    other_nodes: tuple[int, ...] = ()

    def sweep_run(self, arm: str, rate: float) -> Run:
        return Run(arm, rate, self.seeds[0], self.nodes, self.sweep_tokens, self.size)

    def final_run(self, arm: str, rate: float, seed: int, nodes: int) -> Run:
        return Run(arm, rate, seed, nodes, self.tokens, self.size)

    def with_nodes(self, nodes: int) -> list[str]:
        """The arms that also run with this other number of nodes."""
        return [arm for arm in NODES_MATTER if ARMS[arm].can_have(nodes, self.size.samples)]

    def sweep(self, arm: str, results: Sequence[Result]) -> dict[float, float]:
        """The losses of an arm's sweep, by rate."""
        return {one.run.rate: one.loss for one in results if one.run == self.sweep_run(arm, one.run.rate)}


def results_in(folder: Path, study: Study) -> list[Result]:
    """The existing results of this study, by arm; of a run that was repeated, the newest. Raises StudyError for results
    on other texts, or of arms with other settings."""
    try:
        results = {result.run: result for result in read(folder / RESULTS, Result)}.values()
    except ValueError as error:
        raise StudyError(str(error)) from None
    mine = [result for result in results if result.run.size == study.size and result.run.arm in study.arms]
    if len({result.corpus for result in mine}) > 1:
        raise StudyError(
            f"{folder} has results on different texts (other versions of Python's library); use another --into"
        )
    for result in mine:
        now = ARMS[result.run.arm].settings
        changed = [name for name, value in result.settings.items() if value != now.get(name)]
        if changed:
            raise StudyError(
                f"{folder / RESULTS}: {result.run.name} was run with another {', '.join(changed)} "
                "than the arm has now; remove its line, or use another --into"
            )
    return mine


def sweep_rates(
    losses: Mapping[float, float], middle: float, factor: float = RATE_FACTOR
) -> tuple[list[float], float | None]:
    """The rates that a sweep still needs, and the best if it needs none.

    All arms have the same budget: three rates, and up to RATES_MAX if the best lies at an edge. losses: by rate.
    Rates have three digits.
    """
    low, high = -1, 1
    while True:
        rates = [float(f"{middle * factor**offset:.3g}") for offset in range(low, high + 1)]
        missing = [rate for rate in rates if rate not in losses]
        if missing:
            return missing, None
        best = min(rates, key=lambda rate: _finite(losses[rate]))
        if best not in (rates[0], rates[-1]) or len(rates) == RATES_MAX:
            return [], best
        low, high = (low - 1, high) if best == rates[0] else (low, high + 1)


def best_rate(study: Study, arm: str, results: Sequence[Result]) -> float | None:
    """The rate at which an arm runs on all seeds; None while its sweep lasts.

    It is the sweep's best. Where other rates ran to the end on the first seed too, it is the best of all those: what is
    best of a short run is often too high for a long one. The sweep's best itself need not run to the end if those did
    that lie towards it and are worse than others, as in the sweep."""
    _, swept = sweep_rates(study.sweep(arm, results), ARMS[arm].rate)
    if swept is None:
        return None
    at_end = {
        result.run.rate: _finite(result.loss)
        for result in results
        if result.run == study.final_run(arm, result.run.rate, study.seeds[0], study.nodes)
    }
    if not at_end:
        return swept
    best = min(at_end, key=lambda rate: at_end[rate])
    nearest = min(at_end, key=lambda rate: abs(math.log(rate / swept)))
    return best if swept in at_end or best != nearest else swept


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def next_runs(study: Study, results: Sequence[Result]) -> list[Run]:
    """The runs that are known to be missing, in the order in which to run them; empty when the study is complete."""
    done = {result.run for result in results}
    runs = []
    for arm in study.arms:
        missing, _ = sweep_rates(study.sweep(arm, results), ARMS[arm].rate)
        runs += [study.sweep_run(arm, rate) for rate in missing]
    best = {arm: rate for arm in study.arms if (rate := best_rate(study, arm, results)) is not None}
    for seed in study.seeds:
        runs += [study.final_run(arm, best[arm], seed, study.nodes) for arm in REPEATED_ARMS if arm in best]
    for nodes in study.other_nodes:
        runs += [
            study.final_run(arm, best[arm], study.seeds[0], nodes) for arm in study.with_nodes(nodes) if arm in best
        ]
    runs += [study.final_run(arm, rate, study.seeds[0], study.nodes) for arm, rate in best.items()]
    return [run for run in dict.fromkeys(runs) if run not in done]
