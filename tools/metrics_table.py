"""Write docs/metrics.md from the tables of metrics in the code, or check that it is up to date (`--check`)."""

from __future__ import annotations

from thinwire_common.metrics import Definition
from thinwire_coordinator.hall.observe import definitions
from thinwire_coordinator.kinds import KINDS, kind
from thinwire_node.observe.definitions import METRICS as NODE_METRICS
from tools.generated import write_or_check

OF_KINDS = [metric for name in KINDS for metric in kind(name).metrics]
COORDINATOR = (*definitions.METRICS, *OF_KINDS)
NODE = tuple(NODE_METRICS)
TABLES = (("The coordinator", COORDINATOR), ("A node", NODE))
OPENING = """# Metrics

All metrics that a coordinator and a node serve at `/metrics`. `python -m tools.metrics_table` generates this page from
the code. [watching.md](watching.md) says where the numbers come from. Counters and histograms start at 0 when the
process starts. A histogram has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. On Linux there are also
`process_*`, about the process itself (processor time, memory, open files).
"""


def page() -> str:
    return "\n".join([OPENING, *(_section(title, metrics) for title, metrics in TABLES)])


def _section(title: str, metrics: tuple[Definition, ...]) -> str:
    lines = [f"## {title}", "", "| name | kind | labels | description |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    write_or_check("metrics.md", page(), "tools.metrics_table")
