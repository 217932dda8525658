"""The part of a topology that concerns one node: its peers and their weights, in each iteration of the cycle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """topology: its number, ascending. start: the first iteration in which it holds. member: the node's own number,
    which is given once in a run. cycle: for each iteration of the cycle, the weights of this node's peers, by member
    number. adopts: the node begins with the parameters of the first peer that it hears."""

    topology: int
    start: int
    member: int
    cycle: tuple[dict[int, float], ...]
    adopts: bool = False

    def turns(self, iteration: int) -> dict[int, float]:
        """The peers of an iteration, and their weights."""
        return self.cycle[(iteration - self.start) % len(self.cycle)]
