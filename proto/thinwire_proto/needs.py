"""Computes what a contract needs of a machine, in bytes, before anything is allocated: the same arithmetic for a
coordinator that plans a run and for a node that is asked to take part in one. Needs no torch."""

from __future__ import annotations

from thinwire_proto.contract import RunSpec

PROGRAM_BYTES = 350_000_000
"""Interpreter, torch for the CPU, gRPC: what a node of a tiny model holds (VmHWM in a small swarm)."""
NODE_BYTES_A_PARAMETER = 33
"""Measured peak (docs/performance.md): parameters, gradient and its sum, momentum, second moment, and copies of three
of them while the state is saved."""
LOOK_AHEAD_BYTES_A_PARAMETER = 5
"""More where bases may be older than the newest step (docs/performance.md, peak memory)."""
LOCAL_ADAMW_BYTES_A_PARAMETER = 8
"""More with local steps: five values for each parameter in place of three (docs/local-rules.md)."""
FROZEN_BYTES_A_PARAMETER = 4
STATE_BYTES_A_PARAMETER = 12
"""The files of a node: parameters, momentum and second moment in float32. Twice that while it replaces them."""
SNAPSHOT_BYTES_A_PARAMETER = 4


def trained_bytes(run: RunSpec, trained: int) -> int:
    """Peak memory of a node for its trained parameters: values, gradients, momentum, and copies of them."""
    each = NODE_BYTES_A_PARAMETER
    each += LOOK_AHEAD_BYTES_A_PARAMETER if run.round.base_age_max else 0
    each += LOCAL_ADAMW_BYTES_A_PARAMETER if run.rule.kind == "local_adamw" else 0
    return each * trained


def samples_at_once(run: RunSpec, micro_batch: int) -> int:
    """The samples of a forward pass on a node that allows `micro_batch`."""
    return min(run.rule.micro_batch_max(micro_batch), run.round.samples)


def state_disk_bytes(trained: int) -> int:
    """Disk space for a node's own state: its files while they are replaced, and a snapshot that arrives."""
    return (2 * STATE_BYTES_A_PARAMETER + SNAPSHOT_BYTES_A_PARAMETER) * trained
