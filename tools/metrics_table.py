"""Write docs/metrics.md from the tables of metrics in the code, or check that it is up to date (`--check`)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
TABLES = (
    ("The coordinator", "thinwire_coordinator.observe.definitions"),
    ("A node", "thinwire_node.observe.definitions"),
)
OPENING = """# Metrics

What `/metrics` of a coordinator and of a node hold. Made from the code by `python -m tools.metrics_table`;
[watching.md](watching.md) says where the numbers come from. Counters and histograms begin at 0 when the process starts.
A histogram is there as `NAME_bucket`, `NAME_sum` and `NAME_count`. Besides these there are `process_*`, of the process
itself (processor time, memory, open files), on Linux.
"""


class Family(Protocol):
    """What the tables of both packages hold."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def help(self) -> str: ...


def families(module: str) -> tuple[Family, ...]:
    """The table of one package; empty where it has none."""
    if importlib.util.find_spec(module) is None:
        return ()
    found: tuple[Family, ...] = importlib.import_module(module).FAMILIES
    return found


def page() -> str:
    sections = [_section(title, found) for title, module in TABLES if (found := families(module))]
    return "\n".join([OPENING, *sections])


def _section(title: str, table: Iterable[Family]) -> str:
    lines = [f"## {title}", "", "| name | kind | labels | what it is |", "|---|---|---|---|"]
    for family in table:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join([*lines, ""])


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        raise SystemExit("stale: docs/metrics.md; run `python -m tools.metrics_table` and commit")
    else:
        print("the table of metrics is up to date")


if __name__ == "__main__":
    main()
