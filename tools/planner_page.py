"""Write the predictions into docs/planner.md, or check that they are up to date (`--check`)."""

from __future__ import annotations

import io
import shlex

from rich.console import Console

from thinwire_common.options import read_options
from thinwire_planner.choosing.choice import predict
from thinwire_planner.choosing.plan import make_plan, three_digits
from thinwire_planner.cli.plan_file import parse, setting_of
from thinwire_planner.cli.run import PlanOptions, document, parser, print_plan
from thinwire_planner.methods.growth import GROWING
from thinwire_planner.methods.method import Setting, all_variants
from tools.generated import with_parts, write_or_check

MODULE = "tools.planner_page"
EXAMPLE = "plan --preset llama-124m --nodes 16 --compute 8 --variation 0.2 --up 20 --down 100 --rtt 40"
LINES = "plan --preset byte-10m --nodes 4 --compute {} --variation 0.1 --up {} --rtt 40"
COMPUTING_S, RATES_MBIT = (2, 20, 120), (1, 10, 100, 1000)
WIDTH = 80
METHODS = {
    "all-reduce": "all-reduce, DDP",
    "all-reduce, growing": f"all-reduce{GROWING}",
    "local steps of Muon, H = 32": "local steps of Muon",
    "gossip": "gossip",
    "`demo`": "star, demo",
    "`local_muon`": "star, local_muon",
    "`merged_muon` in 7 levels": "star, merged_muon in 7 levels",
    "in 19": "star, merged_muon in 19 levels",
    "in 19, growing": f"star, merged_muon in 19 levels{GROWING}",
    "in 7 to 19, growing": f"star, merged_muon in 7 to 19 levels{GROWING}",
}
"""The columns, each with the beginning of the names that it takes the fastest of."""


def is_of(begin: str, name: str) -> bool:
    return name.startswith(begin) and (GROWING in name) == (GROWING in begin)


def setting(command: str) -> Setting:
    options = read_options(PlanOptions, parser().parse_args(shlex.split(command)))
    return setting_of(parse(document(options), command))


def example() -> str:
    printed = io.StringIO()
    print_plan(
        make_plan(setting(EXAMPLE)), Console(file=printed, width=WIDTH, highlight=False, markup=False), lists_all=False
    )
    lines = [line.rstrip() for line in printed.getvalue().rstrip().splitlines()]
    return "\n".join(["```", f"thinwire {EXAMPLE}", "```", "", "```", *lines, "```", ""])


def table() -> str:
    """Seconds to what a step of dense Muon learns, of the fastest variant of each method."""
    lines = [f"| computing | line | {' | '.join(METHODS)} |", "|---" * (len(METHODS) + 2) + "|"]
    for computing_s in COMPUTING_S:
        for rate in RATES_MBIT:
            here = setting(LINES.format(computing_s, rate))
            sound = [one for one in predict(all_variants(here), here) if not one.variant.caution]
            seconds = [min(one.learning_s for one in sound if is_of(begin, one.name)) for begin in METHODS.values()]
            cells = [three_digits(one) for one in seconds]
            fastest = seconds.index(min(seconds))
            cells[fastest] = f"**{cells[fastest]}**"
            lines.append(f"| {computing_s} s | {rate:,} Mbit/s | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    made = {"example": example(), "table": table()}
    write_or_check("planner.md", with_parts("planner.md", MODULE, made), MODULE)
