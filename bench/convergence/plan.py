"""Plans the runs of a study, given the existing results. Pure: results in, runs out.

First each arm's learning rate is swept, on one seed and fewer tokens. If the best rate lies at an edge, the sweep
extends beyond it. Then every arm runs at full length at its best rate (`best_rate`). Some arms run on several seeds and
with several numbers of nodes. All runs have equal tokens in total.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.convergence.arms import ARMS, NODES_MATTER, RATES_MAX, REPEATED_ARMS, rate_at
from bench.convergence.run import Result, Run, Size

SWEEP_TOKENS, TOKENS = 1 << 20, 1 << 22
"""Of a sweep's run and of a full-length run, in the main study and with its fixed batch."""


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


@dataclass(frozen=True)
class Sweep:
    """The state of an arm's sweep: the next rates to run, or the best rate.

    at_edge: the best rate lies at an edge, and the budget of rates is used up.
    """

    missing: tuple[float, ...]
    best: float | None
    at_edge: bool = False


def sweep_of(study: Study, arm: str, results: Sequence[Result]) -> Sweep:
    """The sweep of an arm. All arms have the same budget: three rates, and up to RATES_MAX if the best lies
    at an edge."""
    losses = {result.run.rate: result.loss for result in results if result.run == study.sweep_run(arm, result.run.rate)}
    middle = ARMS[arm].rate
    low, high = -1, 1
    while True:
        rates = [rate_at(middle, offset) for offset in range(low, high + 1)]
        missing = tuple(rate for rate in rates if rate not in losses)
        if missing:
            return Sweep(missing, None)
        best = min(rates, key=lambda rate: losses[rate] if losses[rate] == losses[rate] else float("inf"))
        if best not in (rates[0], rates[-1]):
            return Sweep((), best)
        if len(rates) == RATES_MAX:
            return Sweep((), best, at_edge=True)
        low, high = (low - 1, high) if best == rates[0] else (low, high + 1)


def best_rate(study: Study, arm: str, results: Sequence[Result]) -> float | None:
    """The rate at which an arm runs on all seeds; None while its sweep lasts.

    It is the sweep's best. Where other rates ran to the end on the first seed too, it is the best of all those: what is
    best of a short run is often too high for a long one. The sweep's best itself need not run to the end if those did
    that lie towards it and are worse than others, as in the sweep."""
    swept = sweep_of(study, arm, results).best
    if swept is None:
        return None
    at_end = {
        result.run.rate: result.loss if result.loss == result.loss else float("inf")
        for result in results
        if result.run == study.final_run(arm, result.run.rate, study.seeds[0], study.nodes)
    }
    if not at_end:
        return swept
    best = min(at_end, key=lambda rate: at_end[rate])
    nearest = min(at_end, key=lambda rate: abs(math.log(rate / swept)))
    return best if swept in at_end or best != nearest else swept


def next_runs(study: Study, results: Sequence[Result]) -> list[Run]:
    """The runs that are known to be missing, in the order in which to run them; empty when the study is complete."""
    done = {result.run for result in results}
    sweeps = {arm: sweep_of(study, arm, results) for arm in study.arms}
    runs = [study.sweep_run(arm, rate) for arm, sweep in sweeps.items() for rate in sweep.missing]
    best = {arm: rate for arm in study.arms if (rate := best_rate(study, arm, results)) is not None}
    for seed in study.seeds:
        runs += [study.final_run(arm, best[arm], seed, study.nodes) for arm in REPEATED_ARMS if arm in best]
    for nodes in study.other_nodes:
        runs += [
            study.final_run(arm, best[arm], study.seeds[0], nodes) for arm in study.with_nodes(nodes) if arm in best
        ]
    runs += [study.final_run(arm, rate, study.seeds[0], study.nodes) for arm, rate in best.items()]
    return [run for run in dict.fromkeys(runs) if run not in done]


def runs_at_least(study: Study, results: Sequence[Result]) -> list[Run]:
    """`next_runs`, plus the full-length runs of arms whose sweep is not finished; used to estimate the
    remaining time."""
    known = next_runs(study, results)
    for arm in study.arms:
        if sweep_of(study, arm, results).best is None:
            rate = ARMS[arm].rate
            seeds = study.seeds if arm in REPEATED_ARMS else study.seeds[:1]
            known += [study.final_run(arm, rate, seed, study.nodes) for seed in seeds]
            other_nodes = [nodes for nodes in study.other_nodes if arm in study.with_nodes(nodes)]
            known += [study.final_run(arm, rate, study.seeds[0], nodes) for nodes in other_nodes]
    return list(dict.fromkeys(known))
