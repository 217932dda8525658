"""Writes the page of a study with its tables and plots. Everything is computed from the result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.convergence.arms import ADAMW, ARMS, DEFAULT, REFERENCE
from bench.convergence.plan import Study, runs_at_least, sweep_of
from bench.convergence.run import Result
from bench.convergence.summaries import ArmSummary, four_decimals, front_of, percent, summaries_of
from bench.convergence.targets import BYTES_TARGET, LOSS_TARGETS

PAGE = "README.md"
CURVES, FRONT = "loss-tokens.png", "loss-bytes.png"


def write_report(study: Study, results: Sequence[Result], folder: Path) -> None:
    summaries = summaries_of(study, results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(study, results, summaries))
    if summaries:
        from bench.convergence.plots import write_plots  # noqa: PLC0415 - matplotlib takes a second

        write_plots(summaries, study.nodes, folder / CURVES, folder / FRONT)


def page(study: Study, results: Sequence[Result], summaries: Sequence[ArmSummary]) -> str:
    """The page, in Markdown."""
    parts = [_head(study, results)]
    if summaries:
        parts += [
            "## Loss and bytes\n",
            _table(summaries),
            _fronts(summaries),
            _verdict(summaries),
            f"![loss against tokens]({CURVES})\n",
        ]
        parts += [f"![loss against bytes]({FRONT})\n"]
    parts += ["## The sweep of learning rates\n", _sweeps(study, results), "## The arms\n", _arms(study)]
    return "\n".join(parts)


def _head(study: Study, results: Sequence[Result]) -> str:
    left = len(runs_at_least(study, results))
    missing = f"\nAt least {left} runs are still to be made. The same command continues with them.\n" if left else ""
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
{missing}"""


def _table(summaries: Sequence[ArmSummary]) -> str:
    adamw = next((summary for summary in summaries if summary.arm == ADAMW), None)
    heads = (
        "arm | nodes | rate | seeds | loss | spread | relative to AdamW | B/parameter | times fewer bytes | one node"
    )
    rows = [f"| {heads} |"]
    rows += ["|---|---|---|---|---|---|---|---|---|---|"]
    for summary in summaries:
        against = percent(summary.relative_loss(adamw)) if adamw else ""
        spread = f"{summary.spread:.4f}" if len(summary.results) > 1 else ""
        rate, seeds = f"{summary.results[0].run.rate:g}", len(summary.results)
        rows.append(
            f"| {summary.arm} | {summary.nodes} | {rate} | {seeds} | {summary.loss:.4f} | {spread} | {against} "
            f"| {summary.bytes_a_parameter:.3g} | {_times_fewer(summary)} | {four_decimals(summary.single_node_loss)} |"
        )
    return "\n".join(rows) + "\n"


def _times_fewer(summary: ArmSummary) -> str:
    return f"{summary.times_fewer:.0f}" if summary.nodes > 1 else ""


def _fronts(summaries: Sequence[ArmSummary]) -> str:
    """A table of the best arm for each number of bytes. With one node, nothing has to be sent."""
    adamw = next((summary for summary in summaries if summary.arm == ADAMW), None)
    if adamw is None:
        return ""
    text = "Which arm loses least, with as many bytes as it needs or more, up to the next row:\n"
    rows = [text, "| nodes | B/parameter, from | arm | seeds | relative to AdamW | times fewer bytes |"]
    rows.append("|---|---|---|---|---|---|")
    for nodes in sorted({summary.nodes for summary in summaries} - {1}):
        for one in front_of([summary for summary in summaries if summary.nodes == nodes], adamw):
            against = percent(one.relative_loss(adamw))
            bytes_from, seeds = f"{one.bytes_a_parameter:.3g}", len(one.results)
            rows.append(f"| {nodes} | {bytes_from} | {one.arm} | {seeds} | {against} | {_times_fewer(one)} |")
    return "\n".join(rows) + "\n"


def _verdict(summaries: Sequence[ArmSummary]) -> str:
    """A table that compares the default with the reference and with AdamW, with the targets."""
    by = {(summary.arm, summary.nodes): summary for summary in summaries}
    adamw = next((summary for summary in summaries if summary.arm == ADAMW), None)
    rows = ["| nodes | thinwire | compared with | loss | relative loss | bytes |", "|---|---|---|---|---|---|"]
    for nodes in sorted({summary.nodes for summary in summaries}):
        ours, theirs = by.get((DEFAULT, nodes)), by.get((REFERENCE, nodes))
        if ours and theirs:
            rows.append(
                f"| {nodes} | {ours.loss:.4f} | the reference | {theirs.loss:.4f} "
                f"| {percent(ours.relative_loss(theirs))} | {theirs.bytes / ours.bytes:.1f} times fewer |"
            )
        if ours and adamw:
            rows.append(
                f"| {nodes} | {ours.loss:.4f} | AdamW | {adamw.loss:.4f} | {percent(ours.relative_loss(adamw))}"
                f"{_loss_target(nodes)} | {_against_ring(ours)} |"
            )
    return "\n".join(["The default, at equal tokens:\n", *rows]) + "\n"


def _loss_target(nodes: int) -> str:
    target = LOSS_TARGETS.get(("fixed", nodes))
    return "" if target is None else f" (target: at most {target:+.2%})"


def _against_ring(summary: ArmSummary) -> str:
    if summary.nodes == 1:
        return f"{summary.bytes_a_parameter:.3g} a parameter and step; an all-reduce of one node sends nothing"
    return f"{summary.times_fewer:.0f} times fewer (target: at least {BYTES_TARGET})"


def _sweeps(study: Study, results: Sequence[Result]) -> str:
    rows = [f"{study.sweep_tokens:,} tokens, {study.nodes} nodes, seed {study.seeds[0]}.\n"]
    rows += ["| arm | best rate | rate: loss |", "|---|---|---|"]
    for arm in study.arms:
        sweep = sweep_of(study, arm, results)
        losses = {r.run.rate: r.loss for r in results if r.run == study.sweep_run(arm, r.run.rate)}
        entries = [f"{rate:g}: {losses[rate]:.4f}" for rate in sorted(losses)]
        best = "" if sweep.best is None else f"{sweep.best:g}{' (at the edge)' if sweep.at_edge else ''}"
        if entries:
            rows.append(f"| {arm} | {best} | {', '.join(entries)} |")
    return "\n".join(rows) + "\n"


def _arms(study: Study) -> str:
    return (
        "\n".join(["| arm | method |", "|---|---|", *(f"| {name} | {ARMS[name].what} |" for name in study.arms)]) + "\n"
    )
