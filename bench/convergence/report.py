"""What a study has found: a page with its tables, beside the plots. Everything is worked out from the runs' files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.convergence.arms import ADAMW, ARMS, DEFAULT, REFERENCE
from bench.convergence.lines import Line, lines_of
from bench.convergence.plan import Study, runs_at_least, sweep_of
from bench.convergence.plots import write_plots
from bench.convergence.run import Result

PAGE = "README.md"
CURVES, FRONT = "loss-tokens.png", "loss-bytes.png"


def write_report(study: Study, results: Sequence[Result], folder: Path) -> None:
    lines = lines_of(study, results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(study, results, lines))
    if lines:
        write_plots(lines, study.nodes, folder / CURVES, folder / FRONT)


def page(study: Study, results: Sequence[Result], lines: Sequence[Line]) -> str:
    """Markdown."""
    parts = [_head(study, results)]
    if lines:
        parts += ["## Loss and bytes\n", _table(lines), _verdict(lines), f"![loss against tokens]({CURVES})\n"]
        parts += [f"![loss against bytes]({FRONT})\n"]
    parts += ["## The sweep of learning rates\n", _sweeps(study, results), "## The arms\n", _arms(study)]
    return "\n".join(parts)


def _head(study: Study, results: Sequence[Result]) -> str:
    left = len(runs_at_least(study, results))
    missing = f"\n{left} runs or more are still to be made; the same command goes on.\n" if left else ""
    size, spec = study.size, study.size.spec
    made = ""
    if results:
        one = results[0]
        made = f" Text: the Python standard library, {one.corpus[:16]}…; torch {one.torch}."
        made += f" {one.parameters:,} parameters."
    return f"""# Convergence

Written by `make science`. Preset `{size.preset}`, {size.samples} samples of {spec.context} tokens in a local step of
all nodes together, {study.tokens:,} tokens in all for every arm, one token a byte; warm-up, then cosine to a
tenth.{made}

Loss is in nats a byte, on {size.held_out} samples of files that nobody trained on. Bytes are those of one node, sent
and received; beside them, how many times fewer that is than float32 all-reduced in every step, 8 bytes a parameter.
Dense arms are charged just that, once a round; thinwire's are what its codec wrote; the reference's are its published
format. Each arm's learning rate is the best of its sweep, below.
{missing}"""


def _table(lines: Sequence[Line]) -> str:
    adamw = next((line for line in lines if line.arm == ADAMW), None)
    rows = ["| arm | nodes | rate | seeds | loss | spread | against AdamW | MB a node | times fewer bytes |"]
    rows += ["|---|---|---|---|---|---|---|---|---|"]
    for line in lines:
        against = f"{line.loss / adamw.loss - 1:+.2%}" if adamw else ""
        spread = f"{line.spread:.4f}" if len(line.results) > 1 else ""
        rate = f"{line.results[0].run.rate:g}"
        rows.append(
            f"| {line.arm} | {line.nodes} | {rate} | {len(line.results)} | {line.loss:.4f} | {spread} | {against} "
            f"| {line.bytes / 1e6:.2f} | {line.dense_bytes / line.bytes:.0f} |"
        )
    return "\n".join(rows) + "\n"


def _verdict(lines: Sequence[Line]) -> str:
    """What the goals of the work on convergence ask, in words."""
    by = {(line.arm, line.nodes): line for line in lines}
    adamw = next((line for line in lines if line.arm == ADAMW), None)
    said = []
    for nodes in sorted({line.nodes for line in lines}):
        ours, theirs = by.get((DEFAULT, nodes)), by.get((REFERENCE, nodes))
        if ours and theirs:
            said.append(
                f"* {_nodes(nodes)}: thinwire's default {ours.loss:.4f} and the reference {theirs.loss:.4f} at equal "
                f"tokens ({ours.loss / theirs.loss - 1:+.2%}), with {theirs.bytes / ours.bytes:.1f} times fewer bytes "
                "than the reference."
            )
        if ours and adamw:
            said.append(
                f"* {_nodes(nodes)}: {ours.loss / adamw.loss - 1:+.2%} against AdamW (wanted: at most +0.50%), with "
                f"{ours.dense_bytes / ours.bytes:.0f} times fewer bytes (wanted: at least 150)."
            )
    return "\n".join(said) + "\n"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _sweeps(study: Study, results: Sequence[Result]) -> str:
    rows = [f"{study.sweep_tokens:,} tokens, {study.nodes} nodes, seed {study.seeds[0]}.\n"]
    rows += ["| arm | best | rate: loss |", "|---|---|---|"]
    for arm in study.arms:
        sweep = sweep_of(study, arm, results)
        tried = {r.run.rate: r.loss for r in results if r.run == study.sweep_run(arm, r.run.rate)}
        words = [f"{rate:g}: {tried[rate]:.4f}" for rate in sorted(tried)]
        best = "" if sweep.best is None else f"{sweep.best:g}{' (at the edge)' if sweep.at_edge else ''}"
        if words:
            rows.append(f"| {arm} | {best} | {', '.join(words)} |")
    return "\n".join(rows) + "\n"


def _arms(study: Study) -> str:
    return (
        "\n".join(["| arm | what |", "|---|---|", *(f"| {name} | {ARMS[name].what} |" for name in study.arms)]) + "\n"
    )
