"""Foretells what a run costs: bytes, time, memory and disk space, for given nodes and links."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.planning import memory, traffic
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_proto.contract import RoundSpec, RunSpec
from thinwire_proto.needs import FROZEN_BYTES_A_PARAMETER

SNAPSHOTS = 5
"""Snapshots that a coordinator keeps without `--keep` (docs/retention.md)."""
ROW_BYTES = 2048
MONTH_SECONDS = 30 * 86_400.0
HOUR_SECONDS = 3_600.0


@dataclass(frozen=True)
class Forecast:
    """The figures of a run. Bytes of a round are those of one node."""

    upload_bytes: float
    download_bytes: float
    upload_s: float
    download_s: float
    round_s: float
    tokens_a_round: float
    """Tokens that all nodes together train in a round."""
    tokens: float
    passes: float
    """Passes over the data; 0 if the data are not known."""
    run_s: float
    first_download_bytes: float
    node_memory_bytes: float
    node_disk_bytes: float
    coordinator_memory_bytes: float
    coordinator_disk_bytes: float
    coordinator_up_bits_s: float
    """Average rate that the coordinator's own link must send."""

    @property
    def transfer_s(self) -> float:
        return self.upload_s + self.download_s

    @property
    def upload_bytes_an_hour(self) -> float:
        return self.upload_bytes / self.round_s * HOUR_SECONDS

    @property
    def run_bytes(self) -> float:
        """Sent and received by a node over the whole run."""
        return (self.upload_bytes + self.download_bytes) * self.run_s / self.round_s

    @property
    def bytes_a_month(self) -> float:
        """Sent and received by a node that takes part all the time."""
        return (self.upload_bytes + self.download_bytes) / self.round_s * MONTH_SECONDS


def forecast(run: RunSpec, facts: ModelFacts, data: DataFacts, swarm: SwarmFacts, micro_batch: int = 8) -> Forecast:
    """Foretell a run with `swarm.nodes` equal nodes that are there all the time."""
    up = traffic.contribution_bytes(facts, run.demo) + traffic.OTHER_BYTES_A_ROUND
    update = traffic.update_bytes(facts, run.demo, swarm.nodes)
    down = update + traffic.OTHER_BYTES_A_ROUND
    upload_s, download_s = 8 * up / swarm.up_bits_s, 8 * down / swarm.down_bits_s
    step_tokens = run.rule.micro_batch_max(micro_batch) * facts.context
    tokens_s = swarm.tokens_s / (1 + run.rule.more_passes(facts.parameters, step_tokens))
    node_tokens, round_s = round_of(run.round, facts.context, tokens_s, upload_s + download_s)
    tokens = node_tokens * swarm.nodes * run.schedule.steps
    snapshot = 4.0 * facts.trained
    return Forecast(
        upload_bytes=up,
        download_bytes=down,
        upload_s=upload_s,
        download_s=download_s,
        round_s=round_s,
        tokens_a_round=node_tokens * swarm.nodes,
        tokens=tokens,
        passes=tokens / data.all_tokens if data.all_tokens else 0.0,
        run_s=round_s * run.schedule.steps,
        first_download_bytes=snapshot + FROZEN_BYTES_A_PARAMETER * facts.frozen,
        node_memory_bytes=memory.node_bytes(run, facts, micro_batch),
        node_disk_bytes=memory.node_disk_bytes(run, facts, data),
        coordinator_memory_bytes=memory.coordinator_bytes(run, facts),
        coordinator_disk_bytes=SNAPSHOTS * snapshot + (update + ROW_BYTES) * run.schedule.steps + data.bytes,
        coordinator_up_bits_s=8 * down * swarm.nodes / round_s,
    )


def round_of(rounds: RoundSpec, context: int, tokens_s: float, transfer_s: float) -> tuple[float, float]:
    """(tokens of a node, seconds) of a round whose upload and download take `transfer_s`."""
    fits = rounds.length_s * tokens_s
    if rounds.pace == "clock":
        computing_s = rounds.length_s if rounds.base_age_max else max(0.0, rounds.length_s - transfer_s)
        return min(computing_s * tokens_s, rounds.lease_samples * context), rounds.length_s
    share = rounds.samples * context
    computing_s = share / tokens_s
    needed_s = max(computing_s, transfer_s) if rounds.base_age_max else computing_s + transfer_s
    return min(share, fits), min(needed_s, rounds.length_s)
