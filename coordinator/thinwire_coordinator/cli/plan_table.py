"""Formats the figures of a plan as a table for a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from thinwire_coordinator.planning.advice import AnyPlan
from thinwire_coordinator.planning.run_text import rows_of


def table(plan: AnyPlan) -> Table:
    """The figures of the run, of a volunteer's machine and of the coordinator's."""
    found = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    found.add_column(style="bold", no_wrap=True)
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    for title, rows in rows_of(plan).items():
        for number, (name, value) in enumerate(rows):
            found.add_row(title if number == 0 else "", name, value)
        found.add_section()
    return found
