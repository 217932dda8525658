"""The page of a card's results, generated from the file with a line for each run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from bench.card.arms import ARMS, DENSE
from bench.card.plan import ITEMS, MODELS, CardRun, Line, next_runs
from bench.markdown import table

HEAD = """# The yardstick, by one command

`python -m bench.card` trains dense arms and sparse ones on equal batches, and `python -m bench.card --page` writes this
page from [card.jsonl](card.jsonl). It is made for one card and a few short stays: `--minutes 28` begins no run that
would not end in time, and the next stay goes on from the file.

    python -m bench.card --minutes 28                                               # on a card
    python -m bench.card --text stdlib --models byte-1m --device cpu --minutes 600  # without one

The text is that of the Python installation: 200 MB of its files, deduplicated. Packages with one in a hundred bytes
are held out whole. The first command packs it, or `--pack FILE` does so elsewhere: 30 MB, with a tokenizer for the
models of tokens. Of the text 6bcdfe35b5c3db50…, files were held out, not packages: in a text that was packed like it,
29% of the held-out lines stood in the training text too, so its losses are lower than they should be.

* *Loss* is in nats a token (of `byte-*` a byte), on files that no node trained on. It is from one seed unless *seeds*
  says more.
* *Above dense* compares it with the best all-reduced arm that ran with the same model, text, batch and number of
  tokens, each at its own best rate; AdamW and Muon must have.
* *Tokens* are those of all nodes; nodes only split the batch. *A parameter*: tokens divided by parameters.
* *Bits* is what a node sends for a component and step, in `-growing` for a component and round. Of `muon-S` it is the
  entropy of the steps, of matrices alone: embeddings and vectors are all-reduced there, and *up* has them with 32 bits.
* *Up* is bytes that a node sends, a parameter and token, where an all-reduce counts 4 bytes a parameter and step.
* On a card, products are in bfloat16 with float32 masters, and orthogonalization is in TF32.
"""


def write_page(lines: Sequence[Line], into: Path) -> None:
    into.write_text("\n".join(_parts(lines)) + "\n")


def _parts(lines: Sequence[Line]) -> Iterator[str]:
    yield HEAD
    missing = list(next_runs(ITEMS, lines))
    yield f"At least {len(missing)} runs for a card are still to be made.\n"
    yield table(("arm", "method"), ((arm.name, arm.what) for arm in ARMS.values())).rstrip()
    for model in MODELS:
        of_model = [line for line in lines if line.run.model == model]
        if of_model:
            yield from _of_model(model, of_model)


def _of_model(model: str, lines: Sequence[Line]) -> Iterator[str]:
    first = lines[0]
    yield f"\n## {model}\n"
    yield f"{first.parameters:,} parameters, {first.batch:,} tokens a step, {MODELS[model].spec.in_words()}."
    for (corpus, card), of_card in groupby(sorted(lines, key=_place), _place):
        group = list(of_card)
        sweep = [line for line in group if line.run.tokens == MODELS[model].sweep]
        full = [line for line in group if line.run.tokens != MODELS[model].sweep]
        yield f"\nOn {card}, torch {group[0].torch}, text {corpus[:16]}…:"
        if full:
            yield ""
            yield _results(full).rstrip()
        if sweep:
            yield f"\nThe sweep of rates, {MODELS[model].sweep:,} tokens:\n"
            yield _sweeps(sweep).rstrip()


def _place(line: Line) -> tuple[str, str]:
    return line.corpus, line.card


def _results(lines: Sequence[Line]) -> str:
    """A row for each arm, number of nodes, tokens and rate; the mean of its seeds."""
    by_row: dict[tuple[int, str, int, float], list[Line]] = defaultdict(list)
    for line in lines:
        by_row[line.run.tokens, line.run.arm, line.run.nodes, line.run.rate].append(line)
    dense = {tokens: _best_dense(lines, tokens) for tokens in {line.run.tokens for line in lines}}
    names = list(ARMS)
    rows = []
    for (tokens, arm, nodes, rate), of_row in sorted(
        by_row.items(), key=lambda item: (item[0][0], names.index(item[0][1]), *item[0][2:])
    ):
        loss, first = sum(line.loss for line in of_row) / len(of_row), of_row[0]
        best = dense[tokens]
        above = f"{loss / best - 1:+.2%}" if best and math.isfinite(loss) and arm not in DENSE else ""
        size = "all" if nodes == 1 else nodes
        of_parameter = f"{tokens / first.parameters:.3g}"
        bits, up = (sum(getattr(line, name) for line in of_row) / len(of_row) for name in ("bits", "up"))
        row = (arm, size, f"{tokens:,}", of_parameter, f"{rate:g}", len(of_row), f"{loss:.4f}", above)
        rows.append((*row, f"{bits:.3g}", f"{up:.2g}", f"{first.speed:,.0f}"))
    names_of_columns = "arm, nodes, tokens, a parameter, rate, seeds, loss, above dense, bits, up, tokens a second"
    return table(names_of_columns.split(", "), rows)


def _sweeps(lines: Sequence[Line]) -> str:
    """A row for each arm and number of nodes."""
    by_row: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in lines:
        by_row[line.run.arm, line.run.nodes].append(line)
    rows = []
    for (arm, nodes), of_row in sorted(by_row.items(), key=lambda item: (list(ARMS).index(item[0][0]), item[0][1])):
        of_row.sort(key=lambda line: line.run.rate)
        best = min(of_row, key=lambda line: line.loss if math.isfinite(line.loss) else math.inf)
        losses = ", ".join(f"{line.run.rate:g}: {line.loss:.4f}" for line in of_row)
        rows.append((arm, "all" if nodes == 1 else nodes, f"{best.run.rate:g}", losses))
    return table(("arm", "nodes", "best rate", "rate: loss"), rows)


def _best_dense(lines: Iterable[Line], tokens: int) -> float | None:
    """The loss of the best dense arm at so many tokens, on seed 1; None unless AdamW and Muon ran."""
    seed = CardRun.seed
    found = {
        arm: [line.loss for line in lines if (line.run.arm, line.run.tokens, line.run.seed) == (arm, tokens, seed)]
        for arm in DENSE
    }
    best = {arm: min(losses) for arm, losses in found.items() if losses}
    return min(best.values()) if best.keys() >= {"adamw", "muon"} else None
