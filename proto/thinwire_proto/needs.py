"""Computes what a contract needs of a machine, in bytes, before anything is allocated: the same arithmetic for a
coordinator that plans a run and for a node that is asked to take part in one. Needs no torch."""

from __future__ import annotations

from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.trained import Trained

PROGRAM_BYTES = 350_000_000
"""Interpreter, torch for the CPU, gRPC: what a node of a tiny model holds (VmHWM in a small swarm)."""
FROZEN_BYTES_A_PARAMETER = 4
SNAPSHOT_BYTES_A_PARAMETER = 4
GATHERED_BYTES_A_PARAMETER = 12
"""Of what is whole at a time in a process that holds a part of the model: a parameter in float32, its gradient, and the
part of either that travels."""
SAMPLES_MAX_CARD = 64
"""The largest micro-batch on a card, unless the volunteer says otherwise."""
CACHE_BYTES_MIN = 64 << 20
"""Room for one shard of the data, beside the state, where the data have shards."""


def trained_bytes(run: RunSpec, trained: Trained) -> int:
    """Peak memory of a node for its trained parameters: values, gradients, momentum, and copies of them."""
    return run.exchange.trained_bytes(run.demo, run.round, run.rule, trained)


def own_moments_bytes(run: RunSpec, trained: Trained) -> int:
    """The part of `trained_bytes` that may be in the machine's memory while the rest is on a card."""
    return run.exchange.own_moments_bytes(run.demo, run.rule, trained)


def samples_at_once(run: RunSpec, micro_batch: int) -> int:
    """The samples of a forward pass on a node that allows `micro_batch`."""
    return min(run.rule.micro_batch_max(micro_batch), run.rule.samples_at_most(run.round.samples))


def state_disk_bytes(run: RunSpec, trained: Trained) -> int:
    """Disk space for a node's own state: its files while they are replaced, and a snapshot that arrives."""
    files = run.exchange.state_bytes(run.demo, run.round, trained)
    return 2 * files + (SNAPSHOT_BYTES_A_PARAMETER + run.rule.MOMENT_BYTES_A_PARAMETER) * trained.parameters
