"""The command `thinwire-coordinator check`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from thinwire_coordinator.planning.problems import CheckedFile, Problem, check_file
from thinwire_proto.errors import ConfigError


def check(arguments: argparse.Namespace) -> None:
    """Print the errors and warnings of a run file, and the figures of its run. Exits with 1 if there are errors."""
    file = check_file(arguments.run)
    problems = list(file.problems)
    if file.run is not None:
        problems += _deeper(arguments, file)
    name = str(arguments.run)
    for problem in sorted(problems, key=lambda problem: (not problem.is_error, problem.line or 0)):
        print(problem.in_words(name))
    errors = sum(problem.is_error for problem in problems)
    warnings = len(problems) - errors
    print(f"{name}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}")
    if errors:
        sys.exit(1)


def _deeper(arguments: argparse.Namespace, file: CheckedFile) -> list[Problem]:
    """Check a file without errors against its model and data, and print its figures."""
    from thinwire_coordinator.cli.plan_table import table  # noqa: PLC0415
    from thinwire_coordinator.cli.planned import memory_of, speed_of  # noqa: PLC0415
    from thinwire_coordinator.planning.advice import AnyPlan, advise, plan_of  # noqa: PLC0415
    from thinwire_coordinator.planning.completion import complete  # noqa: PLC0415
    from thinwire_coordinator.planning.gossip_advice import advise_gossip, without_effect  # noqa: PLC0415
    from thinwire_coordinator.planning.gossip_plan import gossip_plan_of  # noqa: PLC0415

    assert file.run is not None
    found = complete(file.run)
    problems = [Problem(file.line_of_text(section, text), "", text) for section, text in found.errors]
    if found.model is None:
        return problems
    swarm, memory_bytes = speed_of(arguments, found.model), memory_of(arguments)
    plan: AnyPlan
    if found.run.exchange.kind == "gossip":
        try:
            plan = gossip_plan_of(found.run, found.model, found.data, swarm, memory_bytes)
        except ConfigError as error:
            return [*problems, Problem(file.line("exchange"), "exchange", str(error))]
        advices = [*advise_gossip(plan), *without_effect(file.lines)]
    else:
        plan = plan_of(found.run, found.model, found.data, swarm, memory_bytes)
        advices = advise(plan)
    if not problems:
        Console().print(table(plan))
    for advice in advices:
        problems.append(Problem(file.line(*advice.key.split(".")), advice.key, advice.text, is_error=False))
    return problems


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}" if count else f"no {what}s"
