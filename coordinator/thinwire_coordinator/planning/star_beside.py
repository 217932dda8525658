"""Foretells the same training with a coordinator that merges: the run that `init` would write for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from thinwire_coordinator.planning.choice import STEPS_MAX, choose
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.forecast import forecast
from thinwire_coordinator.planning.gossip_forecast import GossipForecast, gossip_forecast
from thinwire_proto.contract import RunSpec

RATE_FACTOR_MIN = 1e-4
"""Rates of the lines down to so much lower are looked at."""
BISECTIONS = 12


@dataclass(frozen=True)
class StarBeside:
    """The star, for as many tokens of the same model, data, nodes and lines.

    run_s: until the end. run_bytes: sent and received by a node. is_shorter: than the run without a centre.
    shorter_below_bits_s: the rate up, lower than that of these lines, below which it would be; 0: at none.
    """

    run_s: float
    run_bytes: float
    is_shorter: bool
    shorter_below_bits_s: float


def star_beside(
    run: RunSpec, facts: ModelFacts, data: DataFacts, swarm: SwarmFacts, memory_bytes: float, figures: GossipForecast
) -> StarBeside:
    """The star beside a run without a centre. figures: the run's forecast. memory_bytes: of a node.

    Times are compared for a token, because `init` writes rounds of the star of two seconds or more, whose samples are
    not those of an iteration.
    """

    def star_for(there: SwarmFacts) -> tuple[float, float]:
        """Seconds, and bytes of a node, of the star."""
        tokens = min(figures.tokens, float(STEPS_MAX * facts.context))  # as many as a run can train in any rounds
        star = choose(run.model, run.data, facts, data, there, memory_bytes=memory_bytes, tokens=tokens)
        found = forecast(star, facts, data, there)
        rounds = figures.tokens / found.tokens_a_round
        return found.round_s * rounds, (found.upload_bytes + found.download_bytes) * rounds

    def is_shorter_at(factor: float) -> bool:
        there = replace(swarm, up_bits_s=factor * swarm.up_bits_s, down_bits_s=factor * swarm.down_bits_s)
        return star_for(there)[0] <= gossip_forecast(run, facts, data, there).run_s

    run_s, run_bytes = star_for(swarm)
    is_shorter = run_s <= figures.run_s
    below = 0.0 if is_shorter else swarm.up_bits_s * _crossing(is_shorter_at)
    return StarBeside(run_s, run_bytes, is_shorter, below)


def _crossing(is_shorter_at: Callable[[float], bool]) -> float:
    """The factor of the rates at which the star gets shorter; 0 if it does at none that is looked at. is_shorter_at:
    whether it is, at such a factor; not at 1."""
    low, high = RATE_FACTOR_MIN, 1.0
    if not is_shorter_at(low):
        return 0.0
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_shorter_at(middle) else (low, middle)
    return low
