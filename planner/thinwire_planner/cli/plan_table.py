"""Formats a plan for a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from thinwire_common.units import human_count, human_seconds
from thinwire_planner.choosing.choice import Predicted
from thinwire_planner.choosing.plan import Plan, change_in_words, seconds_in_words


def print_plan(plan: Plan, console: Console, *, lists_all: bool) -> None:
    setting = plan.setting
    mean, slowest = seconds_in_words(setting.mean_s), seconds_in_words(setting.slowest_s)
    nodes = "1 node" if setting.nodes == 1 else f"{setting.nodes} nodes"
    console.print(
        f"{nodes}, {human_count(setting.parameters)} parameters; computing {mean} a step, the slowest of all {slowest}"
    )
    shown = plan.by_time if lists_all else _best(plan)
    console.print(table(plan, shown))
    cautions = {one.variant.caution: one.variant.family for one in shown if one.variant.caution}
    for caution, family in cautions.items():
        console.print(f"not recommended: {family}: {caution}", soft_wrap=True)
    console.print(f"take: {plan.taken.name}", style="bold", soft_wrap=True)
    for line in (*plan.reasons, *map(change_in_words, plan.changes)):
        console.print(f"  {line}", soft_wrap=True)


def table(plan: Plan, rows: tuple[Predicted, ...]) -> Table:
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    found.add_column("method", overflow="fold")
    found.add_column("a step", justify="right", no_wrap=True)
    found.add_column("bytes a parameter", justify="right")
    has_losses = any(one.to_loss_s is not None for one in plan.by_time)
    if has_losses:
        found.add_column("to the loss", justify="right", no_wrap=True)
    for one in rows:
        to_loss = [human_seconds(one.to_loss_s) if one.to_loss_s is not None else "no curve"] if has_losses else []
        found.add_row(
            one.name,
            seconds_in_words(one.seconds),
            f"{one.forecast.bytes_a_parameter:.3g}",
            *to_loss,
            style="bold" if one is plan.taken or one.name == plan.taken.name else None,
        )
    return found


def _best(plan: Plan) -> tuple[Predicted, ...]:
    """The best of each family, and what they are compared with: all plain methods."""
    shown = {one.name for one in (*plan.families, plan.taken)}
    shown |= {one.name for one in plan.by_time if one.variant.family != "gossip"}
    shown |= {one.variant.without_overlap for one in plan.families}
    return tuple(one for one in plan.by_time if one.name in shown)
