"""A round machine in synthetic time, and contributions that are delivered to it."""

from __future__ import annotations

from support.sealed_run import signed
from thinwire_coordinator.star.round.contributions import Contribution, Round
from thinwire_coordinator.star.round.machine import Action, RoundMachine
from thinwire_proto.contract import RoundSpec

T = 10.0


def machine(pace: str = "barrier", minimum: int = 1, steps: int = 100, **more: int) -> RoundMachine:
    spec = RoundSpec.model_validate({"pace": pace, "length_ms": int(T * 1000), "min_contributions": minimum})
    return RoundMachine(spec, steps, more.get("first_round", 0), more.get("step", 0), more.get("wait_for", 1))


def deliver(m: RoundMachine, node: str, number: int, now: float) -> tuple[bool, list[Action]]:
    """Deliver a complete, valid contribution to the round with this number, which may be over."""
    current = m.round if m.round is not None and m.round.number == number else Round(number, 0, 0.0, T, 8, {node}, ())
    if current.has_from(node, node):
        return False, []  # the header is refused
    contribution = Contribution(node, node, weight=1, samples=1, loss=0.0, began=now, signed=signed(0))
    current.begin(contribution)
    current.arrived(contribution, f"{node} {now}".encode(), 0)
    accepted, actions = m.deliver(contribution, current, now)
    if not accepted:
        current.refuse(contribution)
    return accepted, actions


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
