"""Forecasts the run of this folder from the base's `config.json`, without its weights and data.

    python -m examples.fine_tune.qwen3_8b.forecast [--page]

Prints what `thinwire-coordinator check run.toml` says for the nodes of MACHINE and LINE, which cards can train which
contexts, and how far each machine and each line comes in a round. --page: writes it into the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench.markdown import table
from examples.running.figures import BEGIN, END, PAGE
from thinwire_common.units import human_count, human_seconds
from thinwire_coordinator.planning.completion import facts_of, model_of
from thinwire_coordinator.planning.exchanges import plan_of, planner_of
from thinwire_coordinator.planning.facts import MACHINES, DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.plan import Plan
from thinwire_coordinator.planning.problems import read_run
from thinwire_coordinator.planning.run_text import rows_of
from thinwire_proto.contract import RunSpec
from thinwire_proto.pass_memory import CARDS, card_words

HERE = Path(__file__).parent
NODES, MACHINE = 8, "rtx-3060"
LINES = ((10, 50), (20, 100), (50, 250))
"""Mbit/s up and down."""
LINE = LINES[1]
COMPARED = ("rtx-3060", "rtx-4080", "rtx-3090", "rtx-4090")
CONTEXTS = (512, 1024, 2048, 4096)


def tables(contexts: tuple[int, ...] = CONTEXTS) -> str:
    """The forecast in Markdown. Takes ten seconds and more a context."""
    run = read_run(HERE / "run.toml")
    run = run.model_copy(update={"model": model_of(run.model)})
    facts = facts_of(run.model)
    parts = (
        f"{NODES} nodes with an {MACHINE} each, and lines of {LINE[0]} and {LINE[1]} Mbit/s:",
        _of_check(_plan(run, facts, MACHINE, LINE)),
        "The largest base, and how many samples at once, by the card and `model.context`:",
        table(("tokens", *(f"{card >> 30} GB" for card in CARDS)), _by_context(run, facts, contexts)),
        f"A round of {human_seconds(run.round.length_s)}, by the card:",
        table(("card", "tokens a second", "samples", "tokens of all nodes"), _by_machine(run, facts)),
        "And by the line, up and down:",
        table(("Mbit/s", "for a contribution and an update", "part of a round"), _by_line(run, facts)),
    )
    return "\n\n".join(part.rstrip() for part in parts)


def _plan(run: RunSpec, facts: ModelFacts, machine: str, line: tuple[int, int]) -> Plan:
    up, down = line
    tokens_s = MACHINES[machine].flops_s / facts.flops_a_token
    swarm = SwarmFacts(NODES, 1e6 * up, 1e6 * down, tokens_s)
    return plan_of(run, facts, DataFacts(), swarm, MACHINES[machine].memory_bytes)


def _of_check(plan: Plan) -> str:
    found = rows_of(plan, planner_of(plan.run).words_of(plan))
    rows = [[title, name, value] for title, of_title in found.items() for name, value in of_title]
    return table(("of", "", ""), rows)


def _by_context(run: RunSpec, facts: ModelFacts, contexts: tuple[int, ...]) -> Iterator[list[str]]:
    for context in contexts:
        model = run.model.model_copy(update={"context": context})
        of_context = facts if context == facts.context else facts_of(model)
        words = card_words(run.model_copy(update={"model": model}), of_context.size, of_context.memories)
        yield [f"{context:,}", *(how.replace(f" of {context:,} tokens", "") for how in words.values())]


def _by_machine(run: RunSpec, facts: ModelFacts) -> Iterator[list[str]]:
    for machine in COMPARED:
        plan = _plan(run, facts, machine, LINE)
        samples = plan.step.tokens / NODES / facts.context
        yield [machine, f"{plan.swarm.tokens_s:,.0f}", f"{samples:.0f}", human_count(plan.step.tokens)]


def _by_line(run: RunSpec, facts: ModelFacts) -> Iterator[list[str]]:
    for up, down in LINES:
        step = _plan(run, facts, MACHINE, (up, down)).step
        yield [f"{up} and {down}", human_seconds(step.exchange_s), f"{step.exchange_s / step.seconds:.1%}"]


def with_forecast(page: str, forecast: str) -> str:
    """The page with the forecast between its marks."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{forecast}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("--page", action="store_true", help=f"write it into {PAGE}")
    page, forecast = HERE / PAGE, tables()
    if parser.parse_args().page:
        page.write_text(with_forecast(page.read_text(encoding="utf-8"), forecast), encoding="utf-8")
    print(forecast)


if __name__ == "__main__":
    main()
