"""The options of `thinwire plan`, from the command line or from environment variables."""

from __future__ import annotations

from pathlib import Path

from thinwire_common.options import Options, option
from thinwire_planner.cli.plan_file import NODES_MAX, PARAMETERS_MAX, POSITIVE_MAX, RTT_MS_MAX
from thinwire_planner.timing.compute import VARIATION_MAX


class PlanOptions(Options):
    file: Path | None = option(
        "a TOML file with the setting (docs/planner.md); options override it", None, metavar="FILE", positional=True
    )
    preset: str | None = option("the model, by the name of a built-in size", None, metavar="NAME")
    parameters: int | None = option(
        "the model, by its number of parameters", None, metavar="N", ge=1, le=PARAMETERS_MAX
    )
    nodes: int | None = option(f"how many nodes, at most {NODES_MAX:,}", None, metavar="N", ge=1, le=NODES_MAX)
    per_host: int | None = option("nodes that share a host and its line", None, metavar="N", ge=1, le=NODES_MAX)
    compute: float | None = option("mean seconds of a step of one node", None, metavar="SECONDS", gt=0, le=POSITIVE_MAX)
    variation: float | None = option(
        "their standard deviation over their mean", None, metavar="PART", ge=0, le=VARIATION_MAX
    )
    up: float | None = option("rate up of a host's line", None, metavar="MBIT", gt=0, le=POSITIVE_MAX)
    down: float | None = option(
        "rate down of a host's line", None, metavar="MBIT", gt=0, le=POSITIVE_MAX, shown="that of --up"
    )
    rtt: float | None = option("round trip between hosts", None, metavar="MS", ge=0, le=RTT_MS_MAX)
    lost: float | None = option("packets lost between hosts", None, metavar="PERCENT", ge=0, lt=100)
    machine: Path | None = option(
        "what `thinwire-node doctor --json` printed: its line, and with an invite of a run its step",
        None,
        metavar="FILE",
        has_variable=False,
    )
