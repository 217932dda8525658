"""A simulated volunteer, and what is wrong if an invariant does not hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from simulator.machine import DriftingClock, Hardware, SimulatedMachine
from simulator.synthetic import MemoryState
from thinwire_node.daemon import Node
from thinwire_node.star.part import StarPart
from thinwire_node.star.work import Work


class Broken(AssertionError):
    """An invariant or an expectation does not hold. The message says which one."""


def work_of(node: Node) -> Work | None:
    """The node's work; None until it has data and parameters."""
    assert isinstance(node.part, StarPart | None)
    return node.part.work if node.part is not None else None


@dataclass
class Volunteer:
    """A named machine, through all lives of its node process."""

    name: str
    number: int
    hardware: Hardware
    clock: DriftingClock
    state: MemoryState
    lives: int = 0
    machine: SimulatedMachine | None = None
    node: Node | None = None
    task: asyncio.Task[None] | None = None
    stop: asyncio.Event | None = None
    failures: int = 0
    sent: set[int] = field(default_factory=set)
    """Sample positions in all its contributions, counted or not."""
    error: BaseException | None = None

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()
