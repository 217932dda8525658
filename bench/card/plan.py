"""Which runs a card makes, sorted by what matters most.

The next run depends on the results so far: first an arm's rates are swept with few tokens, then it runs at its best
rate. So a stay that ends early leaves a file from which the next stay, on any card, goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.card.arms import ARMS
from bench.convergence.method import SwarmSize
from bench.convergence.plan import Rates, sweep
from thinwire_proto.contract import DecoderSpec
from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.models import BYTE_PRESETS, LLAMA_PRESETS

FACTOR = 2.0
"""Between the rates of a sweep."""
SWEPT_WITH = {"muon-1.5": 4, "muon-0.5": 4, "thinwire": 4, "muon-4": 16}
"""The nodes with which the rates of an arm are swept, for any number of them."""


@dataclass(frozen=True)
class CardModel:
    """A model and its batches. spec: of the decoder. batch: tokens of all nodes in a step. sweep: tokens of a sweep's
    run. is_bytes: trained on bytes, not on tokens."""

    spec: DecoderSpec
    batch: int
    sweep: int
    is_bytes: bool
    scale: float = 1.0

    @property
    def samples(self) -> int:
        return self.batch // self.spec.context


def _of_llama(spec: LlamaSpec) -> DecoderSpec:
    """A decoder of the same size: its query, key and value matrices are one, with as many keys as queries."""
    named = ("vocabulary", "context", "width", "layers", "heads", "hidden", "tied")
    return DecoderSpec.model_validate({name: getattr(spec, name) for name in named})


QUICK = DecoderSpec(width=64, layers=2, heads=2, hidden=128, context=32)
MODELS = {
    "byte-10m": CardModel(BYTE_PRESETS["byte-10m"], 1 << 16, 20_000_000, is_bytes=True),
    "llama-124m": CardModel(_of_llama(LLAMA_PRESETS["llama-124m"]), 1 << 16, 8_000_000, is_bytes=False, scale=0.5),
    "llama-350m": CardModel(_of_llama(LLAMA_PRESETS["llama-350m"]), 1 << 16, 4_000_000, is_bytes=False, scale=0.3),
    "byte-1m": CardModel(BYTE_PRESETS["byte-1m"], 1 << 12, 1 << 20, is_bytes=True),
    "quick": CardModel(QUICK, 512, 512 * 8, is_bytes=True),
}


@dataclass(frozen=True)
class CardRun:
    """One run. nodes: 1 for the dense arms, whose result is the same with any number."""

    model: str
    arm: str
    nodes: int
    rate: float
    tokens: int
    seed: int = 1

    @property
    def round_tokens(self) -> int:
        return MODELS[self.model].batch * ARMS[self.arm].local_steps

    @property
    def swarm(self) -> SwarmSize:
        return SwarmSize(self.nodes, MODELS[self.model].samples)

    def __str__(self) -> str:
        return f"{self.model} {self.arm} nodes {self.nodes} rate {self.rate:g} tokens {self.tokens:,} seed {self.seed}"


@dataclass(frozen=True)
class Line:
    """The result of a run. curve: (tokens, held-out loss in nats a token). loss: the last. bits: that a node sends for
    a component and step. up: bytes that a node sends, a parameter and token. speed: tokens a second of the steps after
    the first few. seconds: of the whole run, compiling included. diverged: the loss was no number."""

    run: CardRun
    parameters: int
    batch: int
    loss: float
    curve: list[tuple[int, float]]
    bits: float
    up: float
    speed: float
    seconds: float
    corpus: str
    card: str
    torch: str


@dataclass(frozen=True)
class Item:
    """An arm with a number of nodes, run on a number of tokens at its best rate. rate: without a sweep; 0: the sweep's
    best."""

    model: str
    arm: str
    nodes: int
    tokens: int
    seed: int = 1
    rate: float = 0.0


def runs_of(item: Item, lines: Sequence[Line]) -> Iterator[CardRun]:
    """The runs that an item needs first: its sweep, or else itself."""
    if item.rate:
        yield CardRun(item.model, item.arm, item.nodes, item.rate, item.tokens, item.seed)
        return
    arm = ARMS[item.arm].like or item.arm
    nodes = SWEPT_WITH.get(arm, item.nodes)
    tokens = MODELS[item.model].sweep
    swept = {
        Rates(line.run.rate): line.loss if math.isfinite(line.loss) else math.inf
        for line in lines
        if line.run == CardRun(item.model, arm, nodes, line.run.rate, tokens)
    }
    missing, best = sweep(swept, Rates(ARMS[arm].rate * MODELS[item.model].scale), FACTOR)
    for rates in missing:
        yield CardRun(item.model, arm, nodes, rates.rate, tokens)
    if best is not None:
        yield CardRun(item.model, item.arm, item.nodes, best.rate, item.tokens, item.seed)


def next_runs(items: Iterable[Item], lines: Sequence[Line]) -> Iterator[CardRun]:
    """The missing runs that are known by now, the most important first."""
    done = {line.run for line in lines}
    known: set[CardRun] = set()
    for item in items:
        for run in runs_of(item, lines):
            if run not in done and run not in known:
                known.add(run)
                yield run


SMALL, LARGE, LARGEST = "byte-10m", "llama-124m", "llama-350m"
SHORT, LONG = 50_000_000, 200_000_000
"""About 5 and 20 tokens for each parameter of `byte-10m`."""
LARGE_TOKENS = 40_000_000
_MUON = (("muon-half", 1), ("muon-0.5", 4), ("muon-0.5", 16))
_DENSE_AND_MUON = (("adamw", 1), ("muon", 1), *_MUON)
_ALL = (*_DENSE_AND_MUON, ("thinwire", 4), ("thinwire", 16), ("muon-4", 16))
_GROWING = (("muon-half-growing", 1), ("muon-0.5-growing", 4), ("muon-0.5-growing", 16))


def _items(model: str, tokens: int, arms: Iterable[tuple[str, int]], seed: int = 1) -> list[Item]:
    return [Item(model, arm, nodes, tokens, seed) for arm, nodes in arms]


ITEMS = [
    *_items(SMALL, LONG, (*_DENSE_AND_MUON, *_GROWING)),
    *_items(SMALL, LONG, _ALL),
    *_items(LARGE, LARGE_TOKENS, _ALL),
    *_items(SMALL, LONG, (*_MUON, *_GROWING), seed=2),
    *_items(SMALL, SHORT, _ALL),
    *_items(LARGEST, LARGE_TOKENS // 2, _DENSE_AND_MUON),
    *_items(SMALL, LONG, (*_MUON, *_GROWING), seed=3),
    *(Item(SMALL, arm, nodes, LONG, rate=0.005) for arm, nodes in (("muon", 1), *_MUON)),
]
"""The items that a card makes, the most important first."""
SMALLEST_ITEMS = _items("byte-1m", 1 << 22, _DENSE_AND_MUON)
"""The model and the batch of `bench.convergence`, which a processor trains too: a check of the arms."""
QUICK_ITEMS = _items("quick", 512 * 128, (*_ALL, *_GROWING, ("muon-1.5", 4)))
