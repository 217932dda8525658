"""The tables of `make abuse` in docs/abuse.md."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from abuse.measurement import LONGER_MAX, Measured
from abuse.scenes import Scene

PAGE = Path(__file__).parents[2] / "docs" / "abuse.md"
BEGIN, END = "<!-- abuse: begin; made by make abuse -->", "<!-- abuse: end -->"
HEAD = "| attack | sent in each window | round, quiet | round, attacked | longer | longest | counted a round | peak |"


def section(scene: Scene, found: list[Measured], bound_bytes: int) -> list[str]:
    """The part of a scene: heading, table, bound."""
    rows = [
        f"| {one.attack} | {'; '.join(one.sent)} | {median(one.quiet.rounds_s):.3f} s | "
        f"{median(one.attacked.rounds_s):.3f} s | {one.longer:+.1%} | {max(one.attacked.rounds_s):.2f} s | "
        f"{one.quiet.counted_a_round:.2f} / {one.attacked.counted_a_round:.2f} | {one.peak_bytes / 1e6:.0f} MB |"
        for one in found
    ]
    bound = f"Bound on the coordinator's memory: {bound_bytes / 1e6:.0f} MB. Allowed: rounds {LONGER_MAX:.0%} longer."
    return [f"### {scene.name}", "", scene.says, "", HEAD, "|---|---|---|---|---|---|---|---|", *rows, "", bound]


def with_tables(page: str, lines: list[str]) -> str:
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, "", *lines, END + rest.partition(END)[2]])
