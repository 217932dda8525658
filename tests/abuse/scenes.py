"""The runs that are attacked, and with which attacks."""

from __future__ import annotations

from dataclasses import dataclass

from abuse.attacks.table import ATTACKS
from support.real import run_text

STEPS = 100_000
LARGE_MODEL = {"width = 64": "width = 512", "hidden = 64": "hidden = 2048", "heads = 2": "heads = 8"}


@dataclass(frozen=True)
class Scene:
    """name: a heading. says: what the run is like. run: the run file. attacks: their names."""

    name: str
    says: str
    run: str
    attacks: tuple[str, ...]


def _run(rounds: str, length_ms: int, model: dict[str, str] | None = None) -> str:
    text = run_text(STEPS, rounds=rounds).replace("length_ms = 5000", f"length_ms = {length_ms}")
    for before, after in (model or {}).items():
        text = text.replace(before, after)
    return text


SCENES = (
    Scene(
        "Pace clock",
        "Rounds of one second. Their length shows whether attacks stall the coordinator, and the counted contributions "
        "show whether they stall the nodes.",
        _run('pace = "clock"', 1000),
        tuple(ATTACKS),
    ),
    Scene(
        "Pace barrier",
        "A round ends when all nodes that it waits for have contributed, at the latest after five seconds. Training is "
        "the largest part of a round, so its length shows whether attacks slow the nodes too.",
        _run('pace = "barrier"', 5000).replace("samples = 4\n", "samples = 256\n"),
        tuple(ATTACKS),
    ),
    Scene(
        "Large files",
        "A model of 5 million parameters at pace clock, with rounds of three seconds: a snapshot has 21 MB.",
        _run('pace = "clock"', 3000, LARGE_MODEL),
        ("slow readers",),
    ),
)
