"""Writes the pages of the study. Everything on them is computed from the results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import torch

from bench.convergence.arms import ADAMW, ARMS, DENSE
from bench.convergence.plan import (
    FOUR_LONG,
    FOUR_SHORT,
    ITEMS,
    LARGER,
    QUICK_ITEMS,
    RATE_FACTOR,
    SINGLES,
    SIXTEEN_LONG,
    SIXTEEN_SHORT,
    SIXTY_FOUR_LONG,
    TWO_LONG,
    Cell,
    rates_of,
    results_in,
    runs_left,
)
from bench.convergence.run import PRESETS, Result
from bench.markdown import table
from thinwire_planner.methods.growth import GROWTHS
from thinwire_proto.all_reduce import ring_bytes
from thinwire_proto.models import build_decoder

Sections = Mapping[str, Sequence[Cell]]
"""The cells of each table, by its title."""
PAGE, MANY_PAGE = "README.md", "scaling.md"
FEW_SECTIONS: Sections = {
    "Two and four nodes, long horizon": (FOUR_LONG, TWO_LONG),
    "Four nodes, short horizon": (FOUR_SHORT,),
    "Four nodes, larger model, short horizon": (LARGER,),
}
MANY_SECTIONS: Sections = {
    "Sixteen and 64 nodes, long horizon": (SIXTEEN_LONG, SIXTY_FOUR_LONG),
    "Sixteen nodes, short horizon": (SIXTEEN_SHORT,),
    "Sixteen nodes of one sample, short horizon": (SINGLES,),
}
QUICK_SECTIONS: Sections = {"Four nodes": (QUICK_ITEMS[0].cell,)}


@dataclass(frozen=True)
class ArmSummary:
    """The runs of an arm in a cell at its best rates, on one or more seeds. is_swept: whether its sweep is complete."""

    arm: str
    nodes: int
    results: tuple[Result, ...]
    is_swept: bool = True

    @property
    def loss(self) -> float:
        return mean(result.loss for result in self.results)

    @property
    def by_seed(self) -> dict[int, float]:
        return {result.run.seed: result.loss for result in self.results}

    def above(self, other: ArmSummary) -> float | None:
        """How far the mean loss is above another arm's, on the seeds that both have; None if there are none."""
        ours, theirs = self.by_seed, other.by_seed
        seeds = ours.keys() & theirs.keys()
        return mean(ours[seed] for seed in seeds) / mean(theirs[seed] for seed in seeds) - 1 if seeds else None

    @property
    def traffic(self) -> tuple[float, float]:
        """Bytes that one node sends and receives, a parameter and token of all nodes. A ring for a dense arm."""
        run, arm = self.results[0].run, ARMS[self.arm]
        if arm.is_dense:
            rounds = sum(share / times for times, share in arm.growth or GROWTHS[1])
            each = rounds * ring_bytes(self.nodes) / 2 / (run.size.samples * run.size.spec.context)
            return each, each
        whole = self.results[0].parameters * run.tokens
        return mean(one.up for one in self.results) / whole, mean(one.down for one in self.results) / whole

    @property
    def times_fewer(self) -> float:
        """Times fewer bytes than a ring all-reduce of float32 among the same nodes in every local step."""
        size = self.results[0].run.size
        return ring_bytes(self.nodes) / (sum(self.traffic) * size.samples * size.spec.context)

    def cells(self, dense: ArmSummary | None, slope: float | None = None) -> list[str]:
        """The cells of its row; see `TITLES`. dense: the best of the dense arms. slope: see `slope_of`."""
        run, losses, up_and_down = self.results[0].run, [result.loss for result in self.results], self.traffic
        above = self.above(dense) if dense else None
        tokens = None if above is None or not slope else tokens_for_equal_loss(above, slope)
        own = [result.single_node_loss for result in self.results if result.single_node_loss is not None]
        return [
            str(self.nodes),
            self.arm,
            (f"{run.rate:g}, {run.outer:g}" if run.outer else f"{run.rate:g}") + ("" if self.is_swept else " *"),
            str(len(losses)),
            f"{self.loss:.4f}",
            f"{max(losses) - min(losses):.4f}" if len(losses) > 1 else "",
            "" if above is None else f"{above:+.2%}",
            "" if tokens is None else f"{tokens:.2f}",
            *(f"{each:.2g}" for each in up_and_down),
            f"{self.times_fewer:.3g}",
            f"{mean(own):.4f}" if own else "",
        ]


TITLES = (
    "nodes", "arm", "rate", "seeds", "loss", "spread", "above dense", "tokens", "up", "down", "times fewer", "one node",
)  # fmt: skip


def tokens_for_equal_loss(above: float, slope: float) -> float:
    """How many times the tokens of the best dense arm does an arm need for the same loss? above: see `ArmSummary`."""
    return float((1 + above) ** (1 / slope))


def slope_of(cell: Cell, results: Sequence[Result]) -> float | None:
    """s, if the loss of the best dense arm falls as tokens^−s between the shorter horizon and this one; None without a
    shorter one of the same model."""
    shorter = cell.rates_from
    while shorter is not None and shorter.tokens == cell.tokens:
        shorter = shorter.rates_from
    if shorter is None or shorter.size != cell.size:
        return None
    here, before = (best_dense(summaries_of(one, results)) for one in (cell, shorter))
    if here is None or before is None or not (seeds := here.by_seed.keys() & before.by_seed.keys()):
        return None
    falls = mean(math.log(before.by_seed[seed] / here.by_seed[seed]) for seed in seeds)
    return falls / math.log(cell.tokens / shorter.tokens)


def summaries_of(cell: Cell, results: Sequence[Result]) -> list[ArmSummary]:
    """The runs in a cell at the best rates of each arm, or the best so far, in the order of the arms."""
    summaries = []
    for arm in ARMS:
        here = cell.losses(arm, results)
        _, best = rates_of(arm, cell, results)
        rates = best if best in here else min(here, key=lambda one: here[one], default=None)
        if rates is not None:
            found = [one for one in results if one.run == cell.run(arm, rates, one.run.seed)]
            found.sort(key=lambda one: one.run.seed)
            summaries.append(ArmSummary(arm, cell.nodes, tuple(found), is_swept=rates == best))
    return summaries


def best_dense(summaries: Iterable[ArmSummary]) -> ArmSummary | None:
    """The dense arm with the lowest loss on the seeds that all of them have; None unless both AdamW and a Muon ran."""
    dense = [one for one in summaries if one.arm in DENSE]
    if not {ADAMW} < {one.arm for one in dense}:
        return None
    seeds = set.intersection(*(set(one.by_seed) for one in dense))
    return min(dense, key=lambda one: mean(one.by_seed[seed] for seed in seeds)) if seeds else None


def write_report(folder: Path) -> None:
    results = results_in(folder)
    (folder / PAGE).write_text(few_page(results))
    (folder / MANY_PAGE).write_text(many_page(results))


def write_quick(folder: Path) -> None:
    """The page of the quick study: one table."""
    (folder / PAGE).write_text("\n".join(["# A quick study\n", *_sections(QUICK_SECTIONS, results_in(folder))]))


def few_page(results: Sequence[Result]) -> str:
    """The page of two and four nodes, in Markdown, with the method and the arms."""
    parts = [_HEAD + _made_of(results), *_sections(FEW_SECTIONS, results), "## The arms\n"]
    parts += [table(("arm", "method"), ((name, arm.what) for name, arm in ARMS.items())), _ARMS]
    return "\n".join(parts)


def many_page(results: Sequence[Result]) -> str:
    """The page of sixteen and more nodes, in Markdown."""
    on_cards = sum(result.device != "cpu" for result in results)
    return "\n".join([f"{_MANY_HEAD}{on_cards} of all runs were made on a card, in float32 like the others; their\n"
                      "lines of runs.jsonl name it.\n", *_sections(MANY_SECTIONS, results)])  # fmt: skip


def _sections(sections: Sections, results: Sequence[Result]) -> Iterator[str]:
    for title, cells in sections.items():
        size = cells[0].size
        yield f"## {title}\n"
        yield (
            f"`{size.preset}`, steps of {size.samples} samples of {size.spec.context} bytes, "
            f"{cells[0].tokens:,} tokens.\n"
        )
        rows = []
        for cell in cells:
            summaries = summaries_of(cell, results)
            dense, slope = best_dense(summaries), slope_of(cell, results)
            rows += [summary.cells(dense, slope) for summary in summaries]
        columns = len(TITLES) if any(row[-1] for row in rows) else len(TITLES) - 1  # only gossip has the last one
        yield table(TITLES[:columns], (row[:columns] for row in rows)) if rows else "No run so far.\n"
        sweeps = list(dict.fromkeys(row for cell in cells for row in _sweeps(cell, results)))
        if sweeps:
            yield "Rates on the first seed:\n"
            yield table(("tokens", "nodes", "arm", "rate: loss"), sweeps)


def _sweeps(cell: Cell, results: Sequence[Result]) -> Iterator[tuple[str, str, str, str]]:
    """The losses of all rates of a cell and of those that it takes its rates from."""
    for arm in ARMS:
        losses = cell.losses(arm, results)
        if losses:
            of_all = ", ".join(
                f"{rates.rate:g}{f' and {rates.outer:g}' if rates.outer else ''}: {losses[rates]:.4f}"
                for rates in sorted(losses)
            )
            yield f"{cell.tokens:,}", "all" if ARMS[arm].is_dense else str(cell.nodes), arm, of_all
    if cell.rates_from and cell.rates_from not in _SHOWN:
        yield from _sweeps(cell.rates_from, results)


_SHOWN = {cell for sections in (FEW_SECTIONS, MANY_SECTIONS) for cells in sections.values() for cell in cells}
"""Cells that have a table of their own."""


def _made_of(results: Sequence[Result]) -> str:
    """The text and versions of the results, and the number of missing runs."""
    if not results:
        return "No run so far.\n"
    one, left = results[0], runs_left(ITEMS, results)
    text = f"Text: the Python standard library, {one.corpus[:16]}…; torch {one.torch}.\n"
    if not left:
        return text
    pace = median(r.seconds / (r.run.tokens * r.parameters) for r in results if r.device == "cpu")
    parameters = {preset: _parameters(preset) for preset in {run.size.preset for run in left}}
    hours = sum(run.tokens * parameters[run.size.preset] for run in left) * pace / 3600
    return (
        f"{text}\n**{len(results)} runs are made, and about {len(left)} are left**: {hours:.0f} hours, one after the "
        "other, at the median pace of those that are made.\nThe same command goes on with them.\n"
    )


def _parameters(preset: str) -> int:
    model = build_decoder(PRESETS[preset], torch.device("meta"))
    return sum(parameter.numel() for parameter in model.parameters())


_HEAD = f"""# Convergence

`make science` makes the runs of this page and of [many nodes](scaling.md), the most important first, and writes both.
It goes on where it stopped: `nice -n 19 make science SCIENCE="--jobs 1"` takes only time that nobody else wants.
[card.md](card.md) asks the same of larger models, on a card.

* Every arm is compared with the **best of the dense optimizers**, AdamW and Muon with every gradient exchanged, Muon
  with two rates for embeddings: on equal batches, equally many tokens, and each with its own sweep of rates. *Above
  dense* compares the means of the seeds that both have.
* *Tokens*: so many times the tokens of the best dense optimizer does an arm need for the same loss. The loss
  of that optimizer is taken as a power of the tokens, by its runs with these tokens and with a quarter of them.
* The *short horizon* is about 5 tokens for each parameter, the *long* one about 20. Tokens are those of all nodes.
* Two and four nodes share a batch of 16 samples, sixteen and 64 one of 64.
* *Rate* is the best one: a sweep goes from a start to the better neighbour, a factor of {RATE_FACTOR} away, until none
  is better. If an arm has an outer rate, it is the second number, and the sweep goes in both directions. Rates of a
  longer run begin with the best of the shorter one; when the study is complete, the next lower rate ran there as well.
  Two nodes have the rates of four, 64 those of sixteen, and the larger model those of the smaller one at the short
  horizon. A star says that the sweep is not complete.
* *Loss* is in nats per byte, on 512 samples of files that no node trained on. *Spread*: largest less smallest loss.
* *Up* and *down* are bytes that one node sends and receives, a parameter of the model and a token of all nodes. *Times
  fewer* compares their sum with a ring all-reduce of float32 among the same nodes in every local step.
* Dense arms, DiLoCo and MuLoCo are charged that ring, once a round. Arms of thinwire are charged what the codec wrote.
  DeMo is charged its published format, and SparseLoCo 14 bits an entry; in both, a node receives what all others sent.
* The schedule is a warm-up, then a cosine to a tenth; where rounds grow, the cosine begins with the last size. In those
  runs so far, but for `merged-muon-finer-growing`, the rate also fell in the first size, to 0.80 or 0.88 of its peak
  ([log](../log/convergence.md#2026-12-01--the-rate-of-the-first-rounds)).
* Runs from before 2026-11-28 drew their samples in another order
  ([log](../log/convergence.md#2026-11-28--keys-that-have-one-value)): with them, an equal seed does not mean equal
  samples.

"""
_ARMS = """The arms of others take H = 32 local steps where 30 are published, so that all arms have equally many tokens.
Published are an outer rate of 0.7 and a momentum of 0.9 for DiLoCo, 0.7 and 0.6 for MuLoCo (in its authors' code, for
one worker), and 1 for SparseLoCo; sweeps begin there. `sparseloco` has the β and the number of entries of public
implementations.

Embeddings and vectors take steps of AdamW: at 0.2 times the rate of the matrices with `muon`, `muon-4`, MuLoCo and
gossip, at 0.5 with `muon-half`, and with `merged-muon` at the rate itself, with one second moment a row. The second is
worth 2% to dense Muon, and nothing to `muon-4`
(one seed; [log](../log/convergence.md#2026-11-30--figures-read-by-somebody-else)).

**The second version of DeMo (arXiv 2411.19870v2, February 2026) is no arm of its own.** Its text could not be looked up
in full. Its abstract and the reviews of its conference version name the same three parts (momentum on the nodes, DCT
with the largest components, what was sent subtracted) and the same β, and the newest copy of the published code is of
December 2024. So `reference` stands for both until somebody names a difference.
"""
_MANY_HEAD = """# Many nodes

`make science` writes this page; [convergence](README.md) explains it, and has the arms.

* *One node*, in a gossip run, is the loss of one node's own parameters; *loss* is that of their mean.
* In sweeps, the second of two rates is the outer one.

"""
