"""The command `thinwire-coordinator init`."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from rich.console import Console

from thinwire_coordinator.cli.plan_table import table
from thinwire_coordinator.cli.planned import memory_of, speed_of
from thinwire_coordinator.planning.advice import AnyPlan, advise, plan_of
from thinwire_coordinator.planning.choice import choose
from thinwire_coordinator.planning.completion import model_of, sizes_of
from thinwire_coordinator.planning.facts import RTT_SECONDS, DataFacts
from thinwire_coordinator.planning.footprint import facts_of
from thinwire_coordinator.planning.gossip_advice import advise_gossip
from thinwire_coordinator.planning.gossip_plan import GossipPlan, choose_gossip, gossip_plan_of
from thinwire_coordinator.planning.own_rule_choice import OWN_KINDS
from thinwire_coordinator.planning.prepared import read_prepared, sizes_of_manifest
from thinwire_coordinator.planning.rule_choice import KINDS
from thinwire_coordinator.planning.run_text import Key, run_text
from thinwire_coordinator.planning.starting_model import check_name, chosen_model
from thinwire_proto.contract import CorpusSpec, DataSpec, RunSpec
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.task import data_kind_of


def init(arguments: argparse.Namespace) -> None:
    """Write a run file, and print its figures. Raises ConfigError."""
    out: Path = arguments.out
    if out.exists() and not arguments.force:
        raise ConfigError(f"{out} is there already; give another --out, or --force to write over it")
    if not out.resolve().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}; make it first")
    check_name(arguments.model, is_adapter=arguments.lora)
    data, sizes, data_keys = _data(arguments.data, out)
    beside = out.resolve().parent
    given, model_keys = chosen_model(
        arguments.model, sizes, beside, is_corpus=arguments.data is None, is_adapter=arguments.lora
    )
    model = model_of(given)
    facts = facts_of(model, begins=bool(given.first_weights))
    swarm, memory_bytes = speed_of(arguments, facts), memory_of(arguments)
    plan: AnyPlan
    rule = _rule(arguments)
    how_long = {"tokens": arguments.tokens, "steps": arguments.steps}
    if arguments.exchange == "gossip":
        run = choose_gossip(model, data, facts, sizes, swarm, rule=rule, **how_long)
        plan = gossip_plan_of(run, facts, sizes, swarm, memory_bytes)
    else:
        run = choose(model, data, facts, sizes, swarm, rule=rule, memory_bytes=memory_bytes, **how_long)
        plan = plan_of(run, facts, sizes, swarm, memory_bytes)
    text = run_text(plan, _command(arguments), model_keys, data_keys, sizes.tokens)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from None
    Console().print(table(plan))
    for advice in advise_gossip(plan) if isinstance(plan, GossipPlan) else advise(plan):
        print(f"note: {advice.key}: {advice.text}")
    again = shlex.join(["thinwire-coordinator", "check", str(out), *_swarm(arguments)])
    print(f"{out} is written. Read it; after a change, run: {again}")


def _rule(arguments: argparse.Namespace) -> str | None:
    """The rule that is asked for. Raises ConfigError if it is not one of this exchange."""
    kinds = OWN_KINDS if arguments.exchange == "gossip" else KINDS
    if arguments.rule not in (None, *kinds):
        raise ConfigError(
            f"--rule {arguments.rule} is not for --exchange {arguments.exchange}; take one of {', '.join(kinds)}"
        )
    rule: str | None = arguments.rule
    return rule


def _data(folder: Path | None, out: Path) -> tuple[DataSpec, DataFacts, list[Key]]:
    """The data section, its facts, and its lines in the run file."""
    if folder is None:
        spec = CorpusSpec()
        sizes = sizes_of(data_kind_of(spec).make(RunSpec(), lambda: None))
        return spec, sizes, [("kind", spec.kind, "the Python standard library, as bytes")]
    sizes = sizes_of_manifest(read_prepared(folder))
    relative = Path(os.path.relpath(folder.resolve(), out.resolve().parent)).as_posix()
    keys: list[Key] = [
        ("kind", "tokens", f"{sizes.all_tokens:,} tokens to train on"),
        ("folder", relative, "relative to this file"),
    ]
    return TokensSpec(folder=str(folder.resolve())), sizes, keys


def _command(arguments: argparse.Namespace) -> str:
    """The command that makes this file again."""
    given = (
        ("--model", arguments.model),
        ("--data", arguments.data),
        ("--rule", arguments.rule),
        ("--tokens", arguments.tokens),
        ("--steps", arguments.steps),
    )
    words = [word for name, value in given if value is not None for word in (name, str(value))]
    words += ["--lora"] if arguments.lora else []
    words += ["--exchange", arguments.exchange] if arguments.exchange != "star" else []
    return shlex.join(["thinwire-coordinator", "init", *words, *_swarm(arguments)])


def _swarm(arguments: argparse.Namespace) -> list[str]:
    """The options that describe nodes and links."""
    speed = arguments.tokens_per_second
    machine = ["--machine", arguments.machine] if speed is None else ["--tokens-per-second", f"{speed:.15g}"]
    rtt = [] if arguments.rtt == 1000 * RTT_SECONDS else ["--rtt", f"{arguments.rtt:.15g}"]
    links = ["--up", f"{arguments.up:.15g}", "--down", f"{arguments.down:.15g}", *rtt]
    return ["--nodes", str(arguments.nodes), *links, *machine]
