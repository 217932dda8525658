"""A replica: the parameters at a step, and the exact application of updates."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from thinwire_proto.contract import Contract
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.parameters import Parameters, load_parameters, read_about
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.exact.update import Update

SNAPSHOT_VERSION = "1"
STEP_MAX = 1 << 63
"""Above all steps of a contract. Numbers up to here fit the wire and the ledger."""
HASH_BYTES = 32


class Replica:
    """The parameters θ_step. Machines that applied the same updates to the same first state hold the same bits.

    tensors: the whole `Parameters`, or float32 tensors by name on one device, which are changed in place. head: hash of
    the row of step − 1, or the genesis hash. layout: tile layout of the contract's parameters, if the caller has it.
    """

    def __init__(
        self,
        contract: Contract,
        tensors: Parameters | dict[str, Tensor],
        step: int,
        head: bytes,
        layout: TileLayout | None = None,
    ) -> None:
        self.contract = contract
        if not isinstance(tensors, Parameters):
            tensors = Parameters(layout or layout_of(contract.parameters), tensors)
        self.parameters = tensors
        self.step = step
        self.head = head

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.parameters.tensors

    @property
    def layout(self) -> TileLayout:
        return self.parameters.whole

    @property
    def device(self) -> torch.device:
        return self.parameters.device

    def fingerprint(self, nonce: int) -> int:
        """See `thinwire_proto.exact.fingerprint`."""
        return self.parameters.fingerprint(nonce)

    def state_hash(self) -> bytes:
        """See `Parameters.state_hash`."""
        return self.parameters.state_hash()

    @torch.no_grad()
    def apply(self, update: Update, head: bytes) -> None:
        """Apply an update; see `apply_votes`. If it is for another step, raises ReplicaError and changes nothing."""
        if update.step != self.step:
            raise ReplicaError(f"the update of step {update.step} does not fit a replica at step {self.step}")
        self.parameters.apply(
            update.merged,
            self.contract.demo,
            learning_rate=update.learning_rate,
            decay=update.decay,
            step=self.step,
        )
        self.step += 1
        self.head = head

    def clone(self, device: torch.device | str = "cpu") -> Replica:
        return Replica(self.contract, self.parameters.clone(device), self.step, self.head)

    def save(self, path: Path) -> None:
        """Write a snapshot (safetensors) to `path`. The caller syncs and renames the file. Raises OSError."""
        about = {"thinwire": SNAPSHOT_VERSION, "step": str(self.step), "head": self.head.hex()}
        about |= {"contract": self.contract.hash.hex(), "state": self.state_hash().hex()}
        self.parameters.save(path, about)


def load_replica(contract: Contract, path: Path) -> Replica:
    """Read a snapshot onto the CPU. Raises ReplicaError if it is damaged or belongs to another contract."""
    try:
        about = read_about(path)
        if about.get("contract") != contract.hash.hex():
            raise ReplicaError(f"{path} is not a snapshot of this run's contract")
        parameters = load_parameters(layout_of(contract.parameters), path)
        step, head = int(about["step"]), bytes.fromhex(about["head"])
        if not 0 <= step < STEP_MAX or len(head) != HASH_BYTES:
            raise ReplicaError(f"{path} cannot be read as a snapshot: step {step}, and a head of {len(head)} bytes")
        replica = Replica(contract, parameters, step, head)
        if replica.state_hash().hex() != about.get("state"):
            raise ReplicaError(f"{path} is damaged: its parameters do not match the hash in the file")
        return replica
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ReplicaError(f"{path} cannot be read as a snapshot: {error}") from None
