"""Writes the pages of the studies, with tables and plots. Everything is computed from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from bench.convergence.arms import ADAMW, ARMS, DEFAULT, LOCAL_MUON
from bench.convergence.plan import SWEEP_TOKENS, TOKENS, Study, best_rate, next_runs, results_in
from bench.convergence.run import Result
from bench.convergence.scaling import ROUNDS, SAMPLES_A_NODE, SCALINGS, SWEEP_ROUNDS, TITLES, Scaling
from bench.markdown import table
from thinwire_proto.all_reduce import ring_bytes

PAGE, SCALING_PAGE = "README.md", "scaling.md"
CURVES, FRONT = "loss-tokens.png", "loss-bytes.png"
LOSS_TARGETS = {("own", 4): 0.005, ("own", 16): 0.005, ("own", 64): 0.005, ("fixed", 4): 0.005, ("fixed", 16): 0.02}
"""Largest relative loss of the default above AdamW, by the kind of scaling and the number of nodes."""


@dataclass(frozen=True)
class ArmSummary:
    """The full-length runs of an arm with a number of nodes, on one or more seeds."""

    arm: str
    nodes: int
    results: tuple[Result, ...]

    @property
    def loss(self) -> float:
        return mean(result.loss for result in self.results)

    def relative_loss(self, other: ArmSummary) -> float | None:
        """How far the mean loss is above another arm's, on the seeds that both have; None if there are none."""
        ours, theirs = ({result.run.seed: result.loss for result in arm.results} for arm in (self, other))
        seeds = ours.keys() & theirs.keys()
        return mean(ours[seed] for seed in seeds) / mean(theirs[seed] for seed in seeds) - 1 if seeds else None

    @property
    def bytes(self) -> float:
        """Bytes that one node sent and received."""
        return mean(result.bytes for result in self.results)

    @property
    def bytes_a_parameter(self) -> float:
        """Bytes that one node sent and received, a parameter and local step."""
        run = self.results[0].run
        steps = run.tokens / (run.size.samples * run.size.spec.context)
        return self.bytes / (self.results[0].parameters * steps)

    @property
    def times_fewer(self) -> float:
        """Times fewer bytes than a ring all-reduce of float32 among the same nodes in every local step; 0 for one
        node, whose all-reduce sends nothing."""
        return ring_bytes(self.nodes) / self.bytes_a_parameter

    def cells(self, adamw: ArmSummary | None) -> list[str]:
        """The cells of its row, without arm and nodes; see `TITLES_OF_CELLS`."""
        losses = [result.loss for result in self.results]
        above = self.relative_loss(adamw) if adamw else None
        own = [result.single_node_loss for result in self.results if result.single_node_loss is not None]
        return [
            f"{self.results[0].run.rate:g}",
            str(len(losses)),
            f"{self.loss:.4f}",
            f"{max(losses) - min(losses):.4f}" if len(losses) > 1 else "",
            "" if above is None else f"{above:+.2%}",
            f"{self.bytes_a_parameter:.3g}",
            f"{self.times_fewer:.0f}" if self.nodes > 1 else "",
            f"{mean(own):.4f}" if own else "",
        ]


TITLES_OF_CELLS = (
    *("rate", "seeds", "loss", "spread", "relative to AdamW", "B/parameter", "times fewer bytes", "one node"),
)


def summaries_of(study: Study, results: Sequence[Result]) -> list[ArmSummary]:
    """The full-length runs at the best rate of each arm, by arm and number of nodes, in the order of the arms."""
    summaries = []
    for arm in study.arms:
        best = best_rate(study, arm, results)
        final = [r for r in results if r.run.arm == arm and r.run.rate == best and r.run.tokens == study.tokens]
        for nodes in sorted({result.run.nodes for result in final}):
            of_nodes = sorted((one for one in final if one.run.nodes == nodes), key=lambda one: one.run.seed)
            summaries.append(ArmSummary(arm, nodes, tuple(of_nodes)))
    return summaries


def write_report(study: Study, folder: Path) -> None:
    """Write the page of the main study."""
    results = results_in(folder, study)
    (folder / PAGE).write_text(page(study, results))
    if summaries := summaries_of(study, results):
        from bench.convergence.plots import write_plots  # noqa: PLC0415 - matplotlib takes a second

        write_plots(summaries, study.nodes, folder / CURVES, folder / FRONT)


def page(study: Study, results: Sequence[Result]) -> str:
    """The page of the main study, in Markdown."""
    parts = [_head(study, results)]
    if summaries := summaries_of(study, results):
        adamw = next((summary for summary in summaries if summary.arm == ADAMW), None)
        rows = ([summary.arm, str(summary.nodes), *summary.cells(adamw)] for summary in summaries)
        parts += ["## Loss and bytes\n", table(("arm", "nodes", *TITLES_OF_CELLS), rows)]
        parts += [f"![loss against tokens]({CURVES})\n", f"![loss against bytes]({FRONT})\n"]
    parts += ["## The sweep of learning rates\n"]
    parts += [f"{study.sweep_tokens:,} tokens, {study.nodes} nodes, seed {study.seeds[0]}.\n"]
    parts += [table(("arm", "rate: loss"), _sweeps(study, results)), "## The arms\n"]
    parts += [table(("arm", "method"), ((name, ARMS[name].what) for name in study.arms))]
    return "\n".join(parts)


def _sweeps(study: Study, results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    for arm in study.arms:
        if losses := study.sweep(arm, results):
            yield arm, ", ".join(f"{rate:g}: {losses[rate]:.4f}" for rate in sorted(losses))


def _missing(runs: int) -> str:
    return f"\nAt least {runs} runs are still to be made. The same command continues with them.\n" if runs else ""


def _head(study: Study, results: Sequence[Result]) -> str:
    size, spec = study.size, study.size.spec
    made = ""
    if results:
        one = results[0]
        made = f"| text | the Python standard library, {one.corpus[:16]}… |\n| torch | {one.torch} |\n"
        made += f"| parameters | {one.parameters:,} |\n"
    return f"""# Convergence

`make science` writes this page.

| setting | value |
|---|---|
| preset | `{size.preset}` |
| local step of all nodes together | {size.samples} samples of {spec.context} tokens |
| tokens of each arm | {study.tokens:,}, one byte each |
| schedule | warm-up, then cosine to a tenth |
{made}
* *Loss* is in nats per byte, on {size.held_out} samples of files that no node trained on.
* *B/parameter* is what one node sends and receives, a parameter and local step. *Times fewer bytes* compares it with a
  ring all-reduce of float32 among the same nodes in every step: 16·(n − 1)/n, so 12 for four nodes.
* All-reduce arms are charged exactly that, once a round. Arms of thinwire are charged what the codec wrote. The
  reference is charged its published format.
* In a gossip run (`gossip`), *loss* is that of the mean of all nodes, and *one node* that of one alone. Nodes that
  drift apart show in the second.
* Relative losses compare the means of the seeds that both arms have.
* The learning rate of each arm is the best of its sweep, below, or of those that ran to the end.
{_missing(len(next_runs(study, results)))}"""


def write_scaling(folder: Path) -> None:
    """Write the page of the study of many nodes."""
    (folder / SCALING_PAGE).write_text(scaling_page(folder))


def scaling_page(folder: Path) -> str:
    """The page of the study of many nodes, in Markdown. folder: that of the results."""
    found = {one: results_in(folder, one.study) for one in SCALINGS}
    missing = sum(len(next_runs(one.study, results)) for one, results in found.items())
    on_cards = len({result.run for results in found.values() for result in results if result.device != "cpu"})
    head = f"""# Many nodes

`make science SCIENCE=--scaling` writes this page. Model, text and schedule are those of [convergence](README.md).

* *Own batch*: each node brings {SAMPLES_A_NODE} samples; {ROUNDS} steps, rates swept in {SWEEP_ROUNDS}.
* *Fixed batch*: 16 samples of all nodes together; {TOKENS:,} tokens, rates swept in {SWEEP_TOKENS:,}.
* *Own batch, in a gossip run*: the same batches and sweeps, but {TOKENS:,} tokens of all nodes together.
* Each arm has its own sweep of rates with each number of nodes. Where several rates ran to the end on the first seed,
  the best of those counts. *AdamW* is that on the same global batch; arms are compared with it on the seeds that both
  have.
* *B/parameter* is what one node sends and receives, a parameter and step. *Times fewer bytes* compares it with a ring
  all-reduce of float32 among the same nodes: 16·(n − 1)/n.
* {LOCAL_MUON}: a round has 4 local steps of Muon ([local-rules.md](../local-rules.md#local-steps-of-muon)).
* *One node* is the loss of one node's own parameters, where each has its own; *loss* is that of their mean.
* {on_cards} of the runs were made on a card, in float32 like the others; their lines of runs.jsonl name it.
{_missing(missing)}"""
    return "\n".join([head, *(_section(kind, folder) for kind in TITLES)])


def _section(kind: str, folder: Path) -> str:
    """The tables of one kind of scaling."""
    rows, sweeps = [], []
    for one in sorted((one for one in SCALINGS if one.kind == kind), key=lambda one: one.nodes):
        of_adamw = replace(one.baseline, arms=(ADAMW,))
        adamw = next(iter(summaries_of(of_adamw, results_in(folder, of_adamw))), None)
        results = results_in(folder, one.study)
        for summary in summaries_of(one.study, results):
            if summary.nodes == one.nodes:
                target = _target(one, summary.arm)
                rows.append([str(one.nodes), summary.arm, *summary.cells(adamw), target])
        sweeps += [(one.nodes, *of_arm) for of_arm in _sweeps(one.study, results)]
    head = ("nodes", "arm", *TITLES_OF_CELLS, "target")
    return "\n".join(
        [f"## {TITLES[kind]}\n", table(head, rows), table(("nodes", "arm", "rate: loss in the sweep"), sweeps)]
    )


def _target(one: Scaling, arm: str) -> str:
    """The largest loss relative to AdamW that the default may have."""
    target = LOSS_TARGETS.get((one.kind, one.nodes))
    return "" if target is None or arm not in (DEFAULT, LOCAL_MUON) else f"at most {target:+.1%}"
