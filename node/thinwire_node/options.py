"""What the volunteer chose for this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeOptions:
    """name: for people to read. micro_batch: samples at a time, at most. rounds: counted contributions after which the
    node leaves; None: it stays until the run is complete."""

    name: str
    micro_batch: int
    rounds: int | None
