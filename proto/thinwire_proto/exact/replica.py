"""A replica: the parameters, the step they are at, and the exact application of updates (design section 3.6)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinwire_proto.contract import Contract
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.apply import apply_votes, flush_subnormals
from thinwire_proto.exact.fingerprint import fingerprint
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.exact.update import Update

SNAPSHOT_VERSION = "1"


class Replica:
    """θ_step, with the same bits on every machine that applied the same updates to the same first state.

    `tensors`: float32 by name, in the manifest's order, contiguous, on one device, changed in place. `head`: the hash
    of the row of step − 1, or the genesis. `layout`: of the contract's parameters, if it is there already.
    """

    def __init__(
        self,
        contract: Contract,
        tensors: dict[str, Tensor],
        step: int,
        head: bytes,
        layout: TileLayout | None = None,
    ) -> None:
        for parameter in contract.parameters:
            tensor = tensors.get(parameter.name)
            if tensor is None or tuple(tensor.shape) != parameter.shape or tensor.dtype != torch.float32:
                raise ReplicaError(f"parameter {parameter.name} is missing, or is not float32 of {parameter.shape}")
        self.contract = contract
        self.layout = layout or layout_of(contract.parameters)
        self.tensors = {p.name: tensors[p.name].contiguous() for p in contract.parameters}
        self.step = step
        self.head = head
        for tensor in self.tensors.values():
            flush_subnormals(tensor)

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    def fingerprint(self, nonce: int) -> int:
        """See `thinwire_proto.exact.fingerprint`."""
        return fingerprint(self.tensors.values(), nonce)

    def state_hash(self) -> bytes:
        """SHA-256 over the parameters' bytes (little-endian) in the manifest's order."""
        digest = hashlib.sha256()
        for tensor in self.tensors.values():
            digest.update(tensor.cpu().numpy().astype("<f4", copy=False).tobytes())
        return digest.digest()

    @torch.no_grad()
    def apply(self, update: Update, head: bytes) -> None:
        """See `apply_votes`. Raises ReplicaError if the update is for another step; the replica is then untouched."""
        if update.step != self.step:
            raise ReplicaError(f"the update of step {update.step} does not fit a replica at step {self.step}")
        apply_votes(
            self.tensors,
            update.merged,
            self.layout,
            self.contract.demo,
            learning_rate=update.learning_rate,
            decay=update.decay,
            step=self.step,
        )
        self.step += 1
        self.head = head

    def clone(self, device: torch.device | str = "cpu") -> Replica:
        copies = {name: tensor.to(device, copy=True) for name, tensor in self.tensors.items()}
        return Replica(self.contract, copies, self.step, self.head, self.layout)

    def save(self, path: Path) -> None:
        """Write a snapshot (safetensors) to `path`; syncing and renaming are the caller's. Raises OSError."""
        about = {"thinwire": SNAPSHOT_VERSION, "step": str(self.step), "head": self.head.hex()}
        about |= {"contract": self.contract.hash.hex(), "state": self.state_hash().hex()}
        save_tensors({name: tensor.cpu() for name, tensor in self.tensors.items()}, path, about)


def load_replica(contract: Contract, path: Path) -> Replica:
    """Read a snapshot of this contract, on the CPU. Raises ReplicaError if it is torn, or of another run."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("contract") != contract.hash.hex():
                raise ReplicaError(f"{path} is not a snapshot of this run's contract")
            # copies: what safetensors gives is mapped from the file, and reading it kills us if that is cut off later
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            replica = Replica(contract, tensors, int(about["step"]), bytes.fromhex(about["head"]))
        if replica.state_hash().hex() != about.get("state"):
            raise ReplicaError(f"{path} is damaged: its parameters do not have the hash that was written with them")
        return replica
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ReplicaError(f"{path} cannot be read as a snapshot: {error}") from None


def save_tensors(tensors: dict[str, Tensor], path: Path, about: dict[str, str]) -> None:
    """Write a safetensors file. Raises OSError where the disk fails, which safetensors has an error of its own for."""
    try:
        save_file(tensors, path, metadata=about)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None
