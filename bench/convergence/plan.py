"""Which runs a study is made of, given what is there already. Pure: results in, runs out.

First each arm's learning rate is swept, on one seed and fewer tokens; where the best of the rates lies at an edge, the
sweep goes on beyond it. Then every arm runs to its end at its best rate, the three arms that matter on several seeds
and with several numbers of nodes, at equal tokens in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.convergence.arms import ARMS, EXCHANGING, MATTER, RATES_MAX, rate_at
from bench.convergence.run import Result, Run, Size


@dataclass(frozen=True)
class Study:
    """sweep_tokens, tokens: of a run in the sweep, and of one to the end. nodes: the number that every arm is run with,
    and the others that the arms that matter are run with too."""

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


@dataclass(frozen=True)
class Sweep:
    """An arm's sweep as far as it is: the next rates to run, or the best one. at_edge: the best lies at an edge, and
    the budget of rates is used up."""

    missing: tuple[float, ...]
    best: float | None
    at_edge: bool = False


def sweep_of(study: Study, arm: str, results: Sequence[Result]) -> Sweep:
    """Every arm has the same budget: three rates, and up to RATES_MAX where the best lies at an edge."""
    losses = {result.run.rate: result.loss for result in results if result.run == study.sweep_run(arm, result.run.rate)}
    middle = ARMS[arm].rate
    low, high = -1, 1
    while True:
        rates = [rate_at(middle, place) for place in range(low, high + 1)]
        missing = tuple(rate for rate in rates if rate not in losses)
        if missing:
            return Sweep(missing, None)
        best = min(rates, key=lambda rate: losses[rate] if losses[rate] == losses[rate] else float("inf"))
        if best not in (rates[0], rates[-1]):
            return Sweep((), best)
        if len(rates) == RATES_MAX:
            return Sweep((), best, at_edge=True)
        low, high = (low - 1, high) if best == rates[0] else (low, high + 1)


def next_runs(study: Study, results: Sequence[Result]) -> list[Run]:
    """All that can be said by now of what is still to run, in the order in which to run it; empty when all is done."""
    done = {result.run for result in results}
    sweeps = {arm: sweep_of(study, arm, results) for arm in study.arms}
    runs = [study.sweep_run(arm, rate) for arm, sweep in sweeps.items() for rate in sweep.missing]
    best = {arm: sweep.best for arm, sweep in sweeps.items() if sweep.best is not None}
    for seed in study.seeds:
        runs += [study.final_run(arm, best[arm], seed, study.nodes) for arm in MATTER if arm in best]
    for nodes in study.other_nodes:
        runs += [study.final_run(arm, best[arm], study.seeds[0], nodes) for arm in EXCHANGING if arm in best]
    runs += [study.final_run(arm, rate, study.seeds[0], study.nodes) for arm, rate in best.items()]
    return [run for run in dict.fromkeys(runs) if run not in done]


def runs_at_least(study: Study, results: Sequence[Result]) -> list[Run]:
    """`next_runs`, and runs to the end for each arm whose sweep is not over yet: what the duration is foretold from."""
    known = next_runs(study, results)
    for arm in study.arms:
        if sweep_of(study, arm, results).best is None:
            rate = ARMS[arm].rate
            seeds = study.seeds if arm in MATTER else study.seeds[:1]
            known += [study.final_run(arm, rate, seed, study.nodes) for seed in seeds]
            nodes_too = study.other_nodes if arm in EXCHANGING else ()
            known += [study.final_run(arm, rate, study.seeds[0], nodes) for nodes in nodes_too]
    return list(dict.fromkeys(known))
