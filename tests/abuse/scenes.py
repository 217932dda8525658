"""The runs that are attacked, and with which attacks."""

from __future__ import annotations

from dataclasses import dataclass

from abuse.attacks import ATTACKS
from support.real import run_text

STEPS = 100_000


@dataclass(frozen=True)
class Scene:
    """name: a heading. says: what the run is like. run: the run file. attacks: their names."""

    name: str
    says: str
    run: str
    attacks: tuple[str, ...]


SCENES = (
    Scene(
        "Pace clock",
        "Rounds of one second. Their length shows whether attacks stall the coordinator, and the counted contributions "
        "show whether they stall the nodes.",
        run_text(STEPS, length_ms=1000, rounds='pace = "clock"'),
        tuple(ATTACKS),
    ),
    Scene(
        "Pace barrier",
        "A round ends when all nodes that it waits for have contributed, at the latest after five seconds. Training is "
        "the largest part of a round, so its length shows whether attacks slow the nodes too.",
        run_text(STEPS, samples=256, rounds='pace = "barrier"'),
        tuple(ATTACKS),
    ),
    Scene(
        "Large files",
        "A model of 5 million parameters at pace clock, with rounds of three seconds: a snapshot has 21 MB.",
        run_text(STEPS, width=512, heads=8, hidden=2048, length_ms=3000, rounds='pace = "clock"'),
        ("slow readers",),
    ),
)
