"""The swarm that the options of `init` and `check` describe."""

from __future__ import annotations

import argparse

from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.machines import MACHINES

UNKNOWN_MEMORY_BYTES = 16e9
"""Memory of a machine whose speed was given, but not its kind."""


def speed_of(arguments: argparse.Namespace, facts: ModelFacts) -> SwarmFacts:
    """The nodes and links of the options."""
    given = arguments.tokens_per_second
    speed = given if given is not None else MACHINES[arguments.machine].flops_s / facts.flops_a_token
    return SwarmFacts(arguments.nodes, 1e6 * arguments.up, 1e6 * arguments.down, speed, arguments.rtt / 1e3)


def memory_of(arguments: argparse.Namespace) -> float:
    """Memory of one node's machine, in bytes."""
    if arguments.tokens_per_second is not None:
        return UNKNOWN_MEMORY_BYTES
    return MACHINES[arguments.machine].memory_bytes
