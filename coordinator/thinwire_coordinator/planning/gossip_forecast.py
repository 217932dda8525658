"""Foretells a run without a centre by the model of the planner."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from thinwire_coordinator.gossip.deposits import DEPOSIT_BYTES_A_PARAMETER
from thinwire_coordinator.planning import memory
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.forecast import MONTH_SECONDS
from thinwire_planner.methods.gossip import GossipVariant, arcs_of, codec_of
from thinwire_planner.methods.method import Setting
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.network import Network
from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.copies import SNAPSHOTS_FIRST
from thinwire_proto.needs import FROZEN_BYTES_A_PARAMETER, PROGRAM_BYTES, REPORT_BYTES

VARIATION = 0.1
"""Coefficient of variation of the computing of a node, as of `thinwire plan`."""
COORDINATOR_RATE = 1e9
"""Bits a second of the coordinator's own line, as of `thinwire plan`."""
COORDINATOR_BYTES_A_PARAMETER = 16
"""Measured peak without the sums of votes, which it has none of (docs/performance.md)."""
SNAPSHOTS = 2
"""The first state, and the mean."""
NODES_MAX = 8192
"""The most that a contract allows."""
ITERATIONS = 400
"""Of the simulation behind a forecast."""


@dataclass(frozen=True)
class GossipForecast:
    """The figures of a run. A step is one iteration of each node.

    message_s: the longest message of a step. bytes_a_parameter, step_bytes: sent and received by a node in a step.
    peers: of a node, at most. new_peer_bytes: sent and received before the first difference to a peer that a node has
    nothing in common with. relay_bits_s: that the coordinator sends if it hands on all messages.
    """

    computing_s: float
    message_s: float
    step_s: float
    bytes_a_parameter: float
    step_bytes: float
    tokens_a_step: float
    tokens: float
    passes: float
    run_s: float
    first_download_bytes: float
    node_memory_bytes: float
    node_disk_bytes: float
    coordinator_memory_bytes: float
    coordinator_disk_bytes: float
    peers: int
    new_peer_bytes: float
    relay_bits_s: float

    @property
    def bytes_a_month(self) -> float:
        """Sent and received by a node that takes part all the time."""
        return self.step_bytes / self.step_s * MONTH_SECONDS

    @property
    def run_bytes(self) -> float:
        return self.step_bytes * self.run_s / self.step_s


def exchange_of(run: RunSpec) -> tuple[GossipSpec, OwnStepsSpec]:
    """The sections of a run without a centre. Raises ConfigError for any other run."""
    if not isinstance(run.exchange, GossipSpec) or not isinstance(run.rule, OwnStepsSpec):
        raise ConfigError('these figures are those of exchange.kind = "gossip", where each node steps by itself')
    return run.exchange, run.rule


def gossip_forecast(
    run: RunSpec, facts: ModelFacts, data: DataFacts, swarm: SwarmFacts, micro_batch: int = 8
) -> GossipForecast:
    """Foretell a run with `swarm.nodes` equal nodes that are there all the time. Raises ConfigError if the topology or
    a run cannot have so many nodes."""
    exchange, rule = exchange_of(run)
    if swarm.nodes > NODES_MAX:
        raise ConfigError(f"a run has at most {NODES_MAX:,} nodes (round.nodes_max), and there are {swarm.nodes:,}")
    setting = setting_of(facts, swarm, computing_s(rule, facts, swarm))
    found = variant_of(exchange).forecast(setting)
    step_bytes = found.bytes_a_parameter * facts.trained
    tokens_a_step = float(rule.samples * facts.context * swarm.nodes)
    tokens, run_s = tokens_a_step * run.schedule.steps, found.seconds * run.schedule.steps
    each = COORDINATOR_BYTES_A_PARAMETER + DEPOSIT_BYTES_A_PARAMETER
    beats = run_s / run.round.length_s
    parts = dict(found.parts)
    return GossipForecast(
        computing_s=parts["computing"],
        message_s=parts["message"],
        step_s=found.seconds,
        bytes_a_parameter=found.bytes_a_parameter,
        step_bytes=step_bytes,
        tokens_a_step=tokens_a_step,
        tokens=tokens,
        passes=tokens / data.all_tokens if data.all_tokens else 0.0,
        run_s=run_s,
        first_download_bytes=4.0 * facts.trained + FROZEN_BYTES_A_PARAMETER * facts.frozen,
        node_memory_bytes=memory.node_bytes(run, facts, micro_batch),
        node_disk_bytes=memory.node_disk_bytes(run, facts, data),
        coordinator_memory_bytes=PROGRAM_BYTES + each * facts.trained + FROZEN_BYTES_A_PARAMETER * facts.frozen,
        coordinator_disk_bytes=SNAPSHOTS * 4.0 * facts.trained + beats * swarm.nodes * REPORT_BYTES + data.bytes,
        peers=_peers_of(exchange, swarm),
        new_peer_bytes=2 * SNAPSHOTS_FIRST * 4.0 * facts.trained,
        relay_bits_s=8 * step_bytes / 2 * swarm.nodes / found.seconds,
    )


def _peers_of(exchange: GossipSpec, swarm: SwarmFacts) -> int:
    """The most peers that a node has in a cycle of the topology."""
    cycle = arcs_of(exchange.topology, swarm.nodes, 1, 0)
    ends = {pair for arcs in cycle for pair in zip(arcs.senders.tolist(), arcs.receivers.tolist(), strict=True)}
    return max(Counter(sender for sender, _ in ends).values(), default=0)


def computing_s(rule: OwnStepsSpec, facts: ModelFacts, swarm: SwarmFacts) -> float:
    """Seconds of an iteration of a node, without the exchange."""
    tokens = rule.samples * facts.context
    return (1 + rule.more_passes(facts.parameters, tokens)) * tokens / swarm.tokens_s


def setting_of(facts: ModelFacts, swarm: SwarmFacts, computing_s: float) -> Setting:
    """The nodes and lines, as the planner has them. computing_s: of an iteration of a node."""
    return Setting(
        parameters=facts.trained,
        compute=ComputeTimes.around(computing_s, VARIATION),
        network=Network.uniform(swarm.nodes, swarm.up_bits_s, swarm.rtt_s, down_bits_s=swarm.down_bits_s),
        speeds=(1.0,) * swarm.nodes,
        coordinator_up_bits_s=COORDINATOR_RATE,
        coordinator_down_bits_s=COORDINATOR_RATE,
        iterations_max=ITERATIONS,
    )


def variant_of(exchange: GossipSpec) -> GossipVariant:
    return GossipVariant(exchange.topology, codec_of(exchange.codec), slack=exchange.slack)
