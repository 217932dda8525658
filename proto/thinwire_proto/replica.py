"""A replica: the parameters, the step they are at, and the exact application of updates (design section 3.6)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinwire_proto.codec import Update
from thinwire_proto.contract import Contract
from thinwire_proto.decode import TILE_BATCH, directions, displacements, scale_votes
from thinwire_proto.errors import ReplicaError
from thinwire_proto.fingerprint import fingerprint
from thinwire_proto.tiles import Part, TileLayout, band_of, layout_of, untile

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
LARGEST_SUBNORMAL = SMALLEST_NORMAL - 2.0**-149
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
        """See `thinwire_proto.fingerprint`."""
        return fingerprint(self.tensors.values(), nonce)

    def state_hash(self) -> bytes:
        """SHA-256 over the parameters' bytes (little-endian) in the manifest's order."""
        digest = hashlib.sha256()
        for tensor in self.tensors.values():
            digest.update(tensor.cpu().numpy().astype("<f4", copy=False).tobytes())
        return digest.digest()

    @torch.no_grad()
    def apply(self, update: Update, head: bytes) -> None:
        """θ ← θ·c, then θ ← θ − η·sign(X), or θ ← θ − S·X with magnitudes: two operations, each rounded, never fused;
        subnormals become zero.

        Raises ReplicaError if the update is for another step; the replica is then untouched.
        """
        if update.step != self.step:
            raise ReplicaError(f"the update of step {update.step} does not fit a replica at step {self.step}")
        layout = self.layout
        places = torch.from_numpy(update.merged.components)
        tile = torch.from_numpy(layout.tile_of(update.merged.components)).to(self.device)
        votes, rates = _tile_rates(update, tile, layout.tiles)
        scaled = torch.zeros(layout.components, dtype=torch.int8, device=self.device)
        scaled[places.to(self.device)] = votes
        for batch in layout.batches(TILE_BATCH):
            if batch.is_matrix:
                of_batch, rate = layout.matrices(scaled)[batch.tiles], rates[batch.tiles, None, None]
            else:
                of_batch, rate = layout.vectors(scaled)[batch.tiles], rates[layout.matrix_tiles :][batch.tiles, None]
            transform = self.contract.demo.transform
            if update.merged.scales is None:
                change = torch.copysign(rate, directions(of_batch, transform, self.step))
            else:
                change = displacements(of_batch, transform, rate)
            for part in batch.parts:
                self._step_band(part, change[part.tiles], update.decay)
        self.step += 1
        self.head = head

    def _step_band(self, part: Part, change: Tensor, decay: float) -> None:
        theta = band_of(self.tensors[part.tensor.name], part.tensor, part.rows)
        if decay != 1.0:
            theta.mul_(decay)
            flush_subnormals(theta)
        theta.sub_(untile(change, part.tensor, theta.shape[0]))
        flush_subnormals(theta)

    def clone(self, device: torch.device | str = "cpu") -> Replica:
        copies = {name: tensor.to(device, copy=True) for name, tensor in self.tensors.items()}
        return Replica(self.contract, copies, self.step, self.head, self.layout)

    def save(self, path: Path) -> None:
        """Write a snapshot (safetensors) to `path`; syncing and renaming are the caller's. Raises OSError."""
        about = {"thinwire": SNAPSHOT_VERSION, "step": str(self.step), "head": self.head.hex()}
        about |= {"contract": self.contract.hash.hex(), "state": self.state_hash().hex()}
        save_tensors({name: tensor.cpu() for name, tensor in self.tensors.items()}, path, about)


def _tile_rates(update: Update, tile: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
    """V' of the merged votes, int8 [n], and what each of `tiles` steps by, float32: η, or its scale. A tile without
    votes steps by zero, which changes no bit. tile: int64 [n], ascending, which of them each belongs to."""
    values = torch.from_numpy(update.merged.values).to(tile.device)
    if update.merged.scales is None:
        votes, stepped = scale_votes(values, tile, tiles)
        return votes, torch.where(stepped, torch.tensor(update.learning_rate, device=tile.device), 0.0)
    rates = torch.zeros(tiles, device=tile.device)
    rates[torch.unique_consecutive(tile)] = torch.from_numpy(update.merged.scales).to(tile.device)
    return values.to(torch.int8), rates


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


def flush_subnormals(tensor: Tensor) -> None:
    """Replace zeros of either sign and subnormals by +0, so that machines that flush them and others agree."""
    torch.ops.aten.hardshrink.out(tensor, LARGEST_SUBNORMAL, out=tensor)  # x where |x| > LARGEST_SUBNORMAL, else +0
