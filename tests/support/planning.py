"""Models, swarms and prepared data that plans are made for, and the command `init`."""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path
from typing import Any

from support.token_folder import write_tokens
from thinwire_coordinator.cli.init import init
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.planning.completion import facts_of
from thinwire_coordinator.planning.exchanges import planner
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.settings import Wanted
from thinwire_proto.contract import CorpusSpec, RunSpec
from thinwire_proto.contract.models.presets import PRESETS


@lru_cache
def facts_of_preset(name: str) -> ModelFacts:
    return facts_of(PRESETS[name])


def swarm(nodes: int = 4, up: float = 10e6, down: float = 50e6, tokens_s: float = 10_000) -> SwarmFacts:
    return SwarmFacts(nodes, up, down, tokens_s)


SMALL = ModelFacts(885_888, 216, 18, 256)
LARGE = ModelFacts(124_000_000, 30_000, 400, 1024)
DATA = DataFacts({"text": 10**9}, 2 * 10**9, vocabulary=256)


def chosen(facts: ModelFacts, of: SwarmFacts, data: DataFacts = DATA, exchange: str = "star", **asked: Any) -> RunSpec:
    """The run that `init` chooses. asked: more of what is wanted."""
    return planner(exchange).choose(Wanted(PRESETS["byte-1m"], CorpusSpec(), facts, data, of, **asked))[0]


def prepared(folder: Path, vocabulary: int = 1000, each: int = 100_000) -> Path:
    """A folder as `prepare` writes it, with two sources of so many tokens each."""
    names = ("wiki", "my code")
    train, held_out = ({name: [tokens] for name in names} for tokens in (each, min(each, 3_000)))
    write_tokens(folder, train, held_out, vocabulary=vocabulary)
    return folder


def run_init(*words: str) -> None:
    arguments: argparse.Namespace = parser().parse_args(["init", *words])
    init(arguments)
