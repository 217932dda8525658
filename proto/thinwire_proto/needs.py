"""Computes what a contract needs of a machine, in bytes, before anything is allocated: the same arithmetic for a
coordinator that plans a run and for a node that is asked to take part in one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from thinwire_proto.blobs import BlobMissing
from thinwire_proto.contract import ModelSpec, RunSpec
from thinwire_proto.task import Batch, Task

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


def activation_bytes(task: Task, spec: ModelSpec) -> int:
    """Bytes that a forward pass of one sample keeps for the backward pass, parameters not included. Allocates nothing.

    0 if it cannot be found: the pass runs on tensors without memory, and some models look at the values of theirs."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor  # holds it, so that its address is not used again
        return tensor

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = task.model("cpu")
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                model.loss(*_sample(spec))
    except (RuntimeError, TypeError, BlobMissing):
        return 0
    own = {tensor.untyped_storage()._cdata for _, tensor in model.named_parameters()}
    return sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items() if storage not in own)


def _sample(spec: Any) -> Batch:
    """One sample of the shape that a model of this kind trains on: an image with its class, or a text."""
    if (size := getattr(spec, "image_size", 0)) > 0:
        return torch.zeros(1, spec.channels, size, size), torch.zeros(1, dtype=torch.int64)
    return (torch.zeros(1, spec.context + 1, dtype=torch.int64),)
