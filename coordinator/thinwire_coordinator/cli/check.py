"""The command `thinwire-coordinator check`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise

from thinwire_coordinator.planning.plan import Plan
from thinwire_coordinator.planning.planned import AMEND
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
    from thinwire_coordinator.cli.init import print_figures, swarm_of  # noqa: PLC0415
    from thinwire_coordinator.planning.completion import complete  # noqa: PLC0415
    from thinwire_coordinator.planning.exchanges import plan_of, planner_of  # noqa: PLC0415
    from thinwire_coordinator.planning.run_text import rows_of  # noqa: PLC0415

    assert file.run is not None
    found = complete(file.run)
    problems = [Problem(file.line_of_text(section, text), "", text) for section, text in found.errors]
    if found.model is None:
        return problems
    planner = planner_of(found.run)
    try:
        plan = plan_of(found.run, found.model, found.data, *swarm_of(arguments, found.model), planned=file.planned)
    except ConfigError as error:
        return [*problems, Problem(file.line("exchange"), "exchange", str(error))]
    problems += [Problem(file.line(AMEND), AMEND, text) for text in _without_data(plan)]
    print_figures(rows_of(plan, planner.words_of(plan)))
    for advice in planner.advise(plan, file.lines):
        problems.append(Problem(file.line(*advice.key.split(".")), advice.key, advice.text, is_error=False))
    return problems


def _without_data(plan: Plan) -> Iterator[str]:
    """Why the data cannot be used as an amendment says."""
    from thinwire_coordinator.planning.completion import read_data  # noqa: PLC0415

    for before, after in pairwise(plan.stages):
        if after.run.data != before.run.data and (why := read_data(after.run)[1]):
            yield f"at {after.begins}: {why}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}" if count else f"no {what}s"
