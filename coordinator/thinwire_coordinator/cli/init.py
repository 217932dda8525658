"""The command `thinwire-coordinator init`."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from thinwire_common.doctor_report import read_doctor_report
from thinwire_coordinator.planning.completion import (
    facts_of,
    model_of,
    read_data,
    read_prepared,
    sizes_of,
    sizes_of_manifest,
    without_weights,
)
from thinwire_coordinator.planning.exchanges import plan_of, planner
from thinwire_coordinator.planning.facts import (
    COORDINATOR_CORES,
    DOWN_MBIT,
    FLOPS_A_PARAMETER,
    MACHINES,
    RTT_SECONDS,
    UP_MBIT,
    DataFacts,
    Machine,
    ModelFacts,
    SwarmFacts,
    site_of,
)
from thinwire_coordinator.planning.run_text import Key, Row, rows_of, run_text
from thinwire_coordinator.planning.settings import Wanted
from thinwire_coordinator.planning.starting_model import check_name, chosen_model
from thinwire_proto.contract import CorpusSpec, DataSpec, RunSpec
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.models import BYTE_PRESETS
from thinwire_proto.task import data_kind_of, task_of

UNKNOWN_MEMORY_BYTES = 16e9
"""Memory of a machine whose speed was given, but not its kind."""


def init(arguments: argparse.Namespace) -> None:
    """Write a run file, and print its figures. Raises ConfigError."""
    out: Path = arguments.out
    if out.exists() and not arguments.force:
        raise ConfigError(f"{out} is there already; give another --out, or --force to write over it")
    if not out.resolve().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}; make it first")
    check_name(arguments.model, is_adapter=arguments.lora)
    own = planner(arguments.exchange)
    if arguments.rule not in (None, *own.RULES):
        raise ConfigError(
            f"--rule {arguments.rule} is not for --exchange {arguments.exchange}; take one of {', '.join(own.RULES)}"
        )
    data, sizes, data_keys = _data(arguments.data, out)
    if sizes.preferences and not arguments.lora:
        raise ConfigError(
            f"{arguments.data} holds preferences, which only an adapter learns: give --lora, and as --model the folder "
            "of the model that it is trained on"
        )
    beside = out.resolve().parent
    given, model_keys, of_kind = chosen_model(
        arguments.model, sizes, beside, is_corpus=arguments.data is None, is_adapter=arguments.lora
    )
    model = model_of(given)
    facts = facts_of(model, begins=bool(given.first_weights))
    swarm, memory_bytes = swarm_of(arguments, facts)
    asked = {"rule": arguments.rule, "tokens": arguments.tokens, "steps": arguments.steps, "growth": arguments.growth}
    run, planned = own.choose(Wanted(model, data, facts, sizes, swarm, memory_bytes, **asked))
    _, why_not = read_data(run)
    if why_not:
        raise ConfigError(f"{arguments.data or 'the corpus'} is no data for this model: {why_not}")
    plan = plan_of(run, facts, sizes, swarm, memory_bytes, planned)
    rows = rows_of(plan, own.words_of(plan))
    keys = {"model": model_keys, "data": data_keys} | own.keys_of(plan)
    text = run_text(rows, keys, _command(arguments), list(sizes.tokens), planned)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from None
    print_figures(rows)
    if of_kind:
        print(f"note: model.kind: {of_kind}")
    if without := without_weights(given):
        print(f"note: model.base: {without}")
    for advice in own.advise(plan, ()):
        print(f"note: {advice.key}: {advice.text}")
    again = shlex.join(["thinwire-coordinator", "check", str(out), *_swarm(arguments)])
    print(f"{out} is written. Read it; after a change, run: {again}")


def swarm_of(arguments: argparse.Namespace, facts: ModelFacts) -> tuple[SwarmFacts, float]:
    """The nodes and links of the options, and the memory of a node's machine in bytes."""
    machine, given = machine_of(arguments.machine), arguments.tokens_per_second
    tokens_s = given if given is not None else machine.flops_s / facts.flops_a_token
    up, down = line_of(arguments)
    swarm = SwarmFacts(
        arguments.nodes,
        1e6 * up,
        1e6 * down,
        tokens_s,
        arguments.rtt / 1e3,
        0 if given is not None else machine.cards,
        arguments.coordinator_cores,
    )
    return swarm, machine.memory_bytes if given is None else UNKNOWN_MEMORY_BYTES


def line_of(arguments: argparse.Namespace) -> tuple[float, float]:
    """A node's upload and download in Mbit/s: those of the options, else those that a doctor measured, else of many
    homes. Raises ConfigError."""
    line = (
        None
        if arguments.machine in MACHINES or site_of(arguments.machine)
        else read_doctor_report(Path(arguments.machine)).line
    )
    up, down = (line.up_bits_s / 1e6, line.down_bits_s / 1e6) if line is not None else (UP_MBIT, DOWN_MBIT)
    return (arguments.up if arguments.up is not None else up, arguments.down if arguments.down is not None else down)


def print_figures(rows: Mapping[str, list[Row]]) -> None:
    found = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    found.add_column(style="bold", no_wrap=True)
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    for title, of_title in rows.items():
        for number, (name, value) in enumerate(of_title):
            found.add_row(title if number == 0 else "", name, value)
        found.add_section()
    Console().print(found)


def _data(folder: Path | None, out: Path) -> tuple[DataSpec, DataFacts, list[Key]]:
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
        ("--growth", arguments.growth),
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
    up, down = line_of(arguments)
    links = ["--up", f"{up:.15g}", "--down", f"{down:.15g}", *rtt]
    given = arguments.coordinator_cores
    cores = [] if given == COORDINATOR_CORES else ["--coordinator-cores", str(given)]
    return ["--nodes", str(arguments.nodes), *links, *machine, *cores]


def machine_of(named: str) -> Machine:
    """The machine of this name in MACHINES, several of its cards as `site_of` takes them, or what `thinwire-node doctor
    --json` measured, in the file of this name.

    A measured speed is of the run's model if the doctor had an invite, else of byte-1m. Raises ConfigError."""
    if (machine := MACHINES.get(named) or site_of(named)) is not None:
        return machine
    report = read_doctor_report(Path(named))
    memory_bytes = float(report.machine.card_bytes or report.machine.memory_bytes)
    run, coordinator = report.run, report.coordinator
    if run is not None and run.tokens_s is not None and coordinator is not None and coordinator.parameters:
        tokens_s, parameters = run.tokens_s, coordinator.parameters
    else:
        spec = BYTE_PRESETS["byte-1m"]
        tokens_s = report.machine.tokens_s
        parameters = sum(math.prod(one.shape) for one in task_of(spec).manifest())
    return Machine(FLOPS_A_PARAMETER * parameters * tokens_s, memory_bytes, f"measured: {named}")
