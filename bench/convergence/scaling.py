"""The study of many nodes: `make science SCIENCE=--scaling`.

Two kinds of batches, each against AdamW on the same global batch, and each arm with its own sweep of rates at each
number of nodes. Fixed batch: 16 samples of all nodes together. Own batch: four samples of each node. In a gossip run,
runs with own batches are shorter, because one process trains all nodes in turn. The results are in the file of the
main study, whose runs of the fixed batch with four nodes are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.convergence.arms import ADAMW, ARMS, CANDIDATES, DEFAULT, GOSSIP_ARMS, LOCAL_MUON
from bench.convergence.plan import SWEEP_TOKENS, TOKENS, Study, runs_at_least
from bench.convergence.run import Size
from bench.convergence.study import Progress, results_in, run_all
from bench.convergence.summaries import ArmSummary, four_decimals, percent, summaries_of
from bench.convergence.targets import LOSS_TARGETS

PAGE = "scaling.md"
SAMPLES_A_NODE = 4
SWEEP_ROUNDS, ROUNDS = 128, 1024
"""Steps of the runs with own batches. In a gossip run, only the sweep has so many."""
BEST_GOSSIP = ("gossip-dense-noise", "gossip-dense-muon", "gossip-sign-noise", "gossip-sign-muon")
"""The best arms in a gossip run. Two of them need at least two samples a node."""
TITLES = {"own": "Own batch", "fixed": "Fixed batch", "gossip": "Own batch, in a gossip run"}
"""By the kind of scaling."""


@dataclass(frozen=True)
class Scaling:
    """The runs with one number of nodes. kind: a key of TITLES. study: its runs. baseline: the study whose AdamW has
    the same global batch."""

    kind: str
    nodes: int
    study: Study
    baseline: Study


def _own(nodes: int) -> Scaling:
    size = Size(samples=SAMPLES_A_NODE * nodes)
    tokens = size.samples * size.spec.context
    arms = (ADAMW, DEFAULT, *CANDIDATES, LOCAL_MUON)
    study = Study(arms, size, SWEEP_ROUNDS * tokens, ROUNDS * tokens, (1,), nodes=nodes)
    return Scaling("own", nodes, study, study)


def _fixed(nodes: int) -> Scaling:
    with_four = Study((ADAMW, DEFAULT, *CANDIDATES), Size(), SWEEP_TOKENS, TOKENS, (1,))
    if nodes == with_four.nodes:
        return Scaling("fixed", nodes, with_four, with_four)  # arms in a gossip run are in the main study
    gossip = tuple(arm for arm in GOSSIP_ARMS if ARMS[arm].can_have(nodes, with_four.size.samples))
    arms = (*with_four.arms[1:], LOCAL_MUON, *gossip)
    return Scaling("fixed", nodes, replace(with_four, arms=arms, nodes=nodes), with_four)


def _without_a_centre(nodes: int) -> Scaling:
    of_own = _own(nodes).study
    study = replace(of_own, arms=(ADAMW, *BEST_GOSSIP), tokens=TOKENS)
    return Scaling("gossip", nodes, study, study)


SCALINGS = (
    *(_own(nodes) for nodes in (16, 4, 1, 64, 8)),
    *(_fixed(nodes) for nodes in (4, 16, 1)),
    _without_a_centre(16),
)
"""In the order in which they run. 16 samples cannot be shared by 64 nodes."""


def selected(arms: Sequence[str]) -> list[Scaling]:
    """All studies, or only these arms of them."""
    if not arms:
        return list(SCALINGS)
    return [
        replace(one, study=replace(one.study, arms=tuple(arm for arm in one.study.arms if arm in arms)))
        for one in SCALINGS
    ]


async def run_scalings(scalings: Sequence[Scaling], folder: Path, jobs: int, show: Callable[[Progress], None]) -> None:
    """Run what is missing of each study, one study after the other."""
    for one in scalings:
        await run_all(one.study, folder, jobs, show)


def write_page(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(folder))


def page(folder: Path) -> str:
    """The page, in Markdown. folder: that of the results."""
    left = sum(len(runs_at_least(one.study, results_in(folder, one.study))) for one in SCALINGS)
    missing = f"\nAt least {left} runs are still to be made. The same command continues with them.\n" if left else ""
    on_cards = len({r.run.name for one in SCALINGS for r in results_in(folder, one.study) if r.device != "cpu"})
    head = f"""# Many nodes

`make science SCIENCE=--scaling` writes this page. Model, text and schedule are those of [convergence](README.md).

* *Own batch*: each node brings {SAMPLES_A_NODE} samples; {ROUNDS} steps, rates swept in {SWEEP_ROUNDS}.
* *Fixed batch*: 16 samples of all nodes together; {TOKENS:,} tokens, rates swept in {SWEEP_TOKENS:,}.
* *Own batch, in a gossip run*: the same batches and sweeps, but {TOKENS:,} tokens of all nodes together.
* Each arm has its own sweep of rates with each number of nodes. Where several rates ran to the end on the first seed,
  the best of those counts. *AdamW* is that on the same global batch; arms are compared with it on the seeds that both
  have.
* *B/parameter* is what one node sends and receives, a parameter and step. *Ring* says how many times more a ring
  all-reduce of float32 among the same nodes takes: 16·(n − 1)/n.
* muon-*H*: a round has H local steps of Muon ([local-rules.md](../local-rules.md#local-steps-of-muon)).
* *One node* is the loss of one node's own parameters, where each has its own; *loss* is that of their mean.
* k*S*-*K*: every node sends S components a tile, and the update keeps the strongest K.
* {on_cards} of the runs were made on a card, in float32 like the others; their lines of runs.jsonl name it.
{missing}"""
    return "\n".join([head, *(_section(kind, folder) for kind in TITLES)])


def _section(kind: str, folder: Path) -> str:
    rows = [
        f"## {TITLES[kind]}\n",
        "| nodes | arm | rate | seeds | loss | above AdamW | B/parameter | ring | one node |",
    ]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    shown = sorted((one for one in SCALINGS if one.kind == kind), key=lambda one: one.nodes)
    for one in shown:
        adamw = _adamw(one.baseline, folder)
        for summary in summaries_of(one.study, results_in(folder, one.study)):
            if summary.nodes == one.nodes:
                rows.append(_row(one, summary, adamw))
    return "\n".join([*rows, "", *_sweeps(shown, folder)])


def _adamw(study: Study, folder: Path) -> ArmSummary | None:
    found = summaries_of(replace(study, arms=(ADAMW,)), results_in(folder, replace(study, arms=(ADAMW,))))
    return found[0] if found else None


def _row(one: Scaling, summary: ArmSummary, adamw: ArmSummary | None) -> str:
    above = ""
    if adamw and summary.arm != ADAMW:
        above = percent(summary.relative_loss(adamw))
        if (target := LOSS_TARGETS.get((one.kind, one.nodes))) is not None and summary.arm in (DEFAULT, LOCAL_MUON):
            above += f" (target: at most {target:+.1%})"
    ring = f"{summary.times_fewer:.0f}" if one.nodes > 1 else ""
    rate = f"{summary.results[0].run.rate:g}"
    return (
        f"| {one.nodes} | {summary.arm} | {rate} | {len(summary.results)} | {summary.loss:.4f} | {above} "
        f"| {summary.bytes_a_parameter:.3g} | {ring} | {four_decimals(summary.single_node_loss)} |"
    )


def _sweeps(shown: Sequence[Scaling], folder: Path) -> list[str]:
    rows = ["| nodes | arm | rate: loss in the sweep |", "|---|---|---|"]
    for one in shown:
        results = results_in(folder, one.study)
        for arm in one.study.arms:
            losses = {r.run.rate: r.loss for r in results if r.run == one.study.sweep_run(arm, r.run.rate)}
            if losses:
                entries = ", ".join(f"{rate:g}: {losses[rate]:.4f}" for rate in sorted(losses))
                rows.append(f"| {one.nodes} | {arm} | {entries} |")
    return [*rows, ""]
