"""A replica: the parameters at a step, and the exact application of updates."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from thinwire_proto.contract import Contract, MergedMuonSpec, Parameter
from thinwire_proto.errors import OtherContract, ReplicaError
from thinwire_proto.exact.apply import apply_votes, decode_gradients, flush_subnormals
from thinwire_proto.exact.fingerprint import fingerprint
from thinwire_proto.exact.mapped import MappedTensors
from thinwire_proto.exact.merged_step import take_merged_step
from thinwire_proto.exact.tensor_files import (
    PIECE_BYTES,
    bytes_of,
    head_of,
    read_about,
    read_pieces,
    read_tensors,
    save_tensors,
)
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.exact.update import Update


class FrozenTensors:
    """The tensors of one moment, until they are in a file, while their owner goes on to change them.

    A copy in memory would be as large as the tensors, and a slow disk must not hold their owner up. So the file is
    written piece by piece, and before the owner changes them, `separate` copies the pieces that are not written yet.
    The tensors are on the CPU, contiguous. One thread writes the file; the one that changes them calls `separate`.

    released: set when the tensors are not needed any longer: they are in the file, or copied, or cannot be written.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._pieces: deque[Tensor] = deque()  # not written yet, in the order of the file
        for name in head_of(self._tensors, {})[0]:
            flat = self._tensors[name].detach().reshape(-1)
            self._pieces += [piece for piece in torch.split(flat, PIECE_BYTES // flat.element_size()) if len(piece)]
        self._lock = threading.Lock()
        self.released = threading.Event()

    def write(self, path: Path, about: Mapping[str, str]) -> None:
        """Write a safetensors file with `about` as metadata. Raises OSError."""
        try:
            with path.open("wb") as file:
                file.write(head_of(self._tensors, about)[1])
                passing = torch.empty(PIECE_BYTES, dtype=torch.uint8)
                while (count := self._take(passing)) > 0:
                    file.write(bytes_of(passing[:count]))
        except OSError as error:
            raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from None
        finally:
            with self._lock:
                self._pieces.clear()
            self._tensors.clear()
            self.released.set()

    def _take(self, passing: Tensor) -> int:
        """Copy the next piece, so that the disk holds up nobody; returns its bytes, 0 after the last one."""
        with self._lock:
            if not self._pieces:
                return 0
            piece = self._pieces.popleft().view(torch.uint8)
            passing[: len(piece)].copy_(piece)
            return len(piece)

    def separate(self) -> int:
        """Copy what is not written yet, once; returns its bytes. The tensors may change when this returns."""
        with self._lock:
            if self.released.is_set():
                return 0
            self._pieces = deque(piece.clone() for piece in self._pieces)
            self.released.set()
            return sum(piece.numel() * piece.element_size() for piece in self._pieces)


SNAPSHOT_VERSION = "1"
STEP_MAX = 1 << 63
"""Above all steps of a contract. Numbers up to here fit the wire and the ledger."""
HASH_BYTES = 32
NOT_THE_STATE = "its parameters do not match the hash in the file"
STATE_LATER = "0" * 2 * HASH_BYTES
"""Stands in a file in place of the state's hash until that is computed."""


@dataclass(frozen=True)
class FrozenReplica:
    """A replica at one step, to be written to a file while the replica goes on."""

    contract: Contract
    step: int
    head: bytes
    tensors: FrozenTensors

    def write(self, path: Path) -> None:
        """Write a snapshot without the state's hash (STATE_LATER). Raises OSError."""
        self.tensors.write(path, about_snapshot(self, STATE_LATER))


class Replica:
    """The parameters θ_step, and the moments that the contract's rule keeps beside them. Machines that applied the same
    updates to the same first state hold the same bits.

    tensors: float32, by name, on one device; changed in place. Subnormal values become zero. Without moments among
    them, these are 0, at step 0 only. head: hash of the row of step − 1, or the genesis hash. is_checked: the tensors
    were a replica's already, so nobody looks at them. Raises ReplicaError if a tensor is missing or has the wrong type
    or shape.
    """

    tensors: dict[str, Tensor]
    """The parameters alone, in the manifest's order."""
    moments: dict[str, Tensor]

    def __init__(
        self, contract: Contract, tensors: Mapping[str, Tensor], step: int, head: bytes, *, is_checked: bool = False
    ) -> None:
        self.contract = contract
        if step == 0 and not any(one.name in tensors for one in contract.moments):
            tensors = {**tensors, **_zeros(contract.moments, next(iter(tensors.values()), torch.zeros(0)).device)}
        found = tensors if is_checked else _checked(tensors, (*contract.parameters, *contract.moments))
        for tensor in () if is_checked else found.values():
            flush_subnormals(tensor)
        self.tensors = {one.name: found[one.name] for one in contract.parameters}
        self.moments = {one.name: found[one.name] for one in contract.moments}
        self.step = step
        self.head = head
        self._frozen: weakref.WeakSet[FrozenTensors] = weakref.WeakSet()

    @property
    def layout(self) -> TileLayout:
        return layout_of(self.contract.parameters)

    @property
    def state(self) -> dict[str, Tensor]:
        """Parameters and moments."""
        return self.tensors | self.moments

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    def fingerprint(self, nonce: int) -> int:
        """See `thinwire_proto.exact.fingerprint`."""
        return fingerprint(self.state.values(), nonce)

    def model_fingerprint(self) -> int:
        """The fingerprint of the parameters alone, under the nonce 0: it names a model, whatever rule trained it."""
        return fingerprint(self.tensors.values(), 0)

    def state_hash(self) -> bytes:
        """SHA-256 of the parameters' little-endian bytes in the manifest's order, and then of the moments'."""
        return hash_of(self.state.values())

    @torch.no_grad()
    def apply(self, update: Update, head: bytes) -> None:
        """Apply an update; see `apply_votes` and `take_merged_step`. If it is for another step, raises ReplicaError and
        changes nothing."""
        if update.step != self.step:
            raise ReplicaError(f"the update of step {update.step} does not fit a replica at step {self.step}")
        for frozen in self.frozen:
            frozen.separate()
        self._change(update)
        self.step += 1
        self.head = head

    def _change(self, update: Update) -> None:
        """Take the step of an update in the parameters and moments."""
        rule, demo, merged, step = self.contract.rule, self.contract.demo, update.merged, self.step
        rate, decay = update.learning_rate, update.decay
        if isinstance(rule, MergedMuonSpec):
            gradients = decode_gradients(merged, self.layout, demo, step=step, device=self.device)
            take_merged_step(self.tensors, self.moments, gradients, rule, learning_rate=rate, decay=decay, step=step)
        else:
            apply_votes(self.tensors, merged, self.layout, demo, learning_rate=rate, decay=decay, step=step)

    @torch.no_grad()
    def go_back(self, earlier: Replica, head: bytes) -> None:
        """Take the parameters and moments of an earlier step, in place of an update. Steps count on."""
        for frozen in self.frozen:
            frozen.separate()
        for name, tensor in self.state.items():
            tensor.copy_(earlier.state[name])
        self.step += 1
        self.head = head

    def copied(self) -> dict[str, Tensor]:
        """The parameters as they are now, for later."""
        return {name: tensor.clone() for name, tensor in self.tensors.items()}

    def clone(self, device: torch.device | str = "cpu") -> Replica:
        tensors = {name: tensor.to(device, copy=True).contiguous() for name, tensor in self.state.items()}
        return Replica(self.contract, tensors, self.step, self.head, is_checked=True)

    def freeze(self) -> FrozenReplica:
        """The replica at this step, on the CPU, without a copy in memory. To be called by the thread that applies."""
        tensors = FrozenTensors(self.state)
        self._frozen.add(tensors)
        return FrozenReplica(self.contract, self.step, self.head, tensors)

    @property
    def frozen(self) -> list[FrozenTensors]:
        """The frozen tensors that are neither in a file yet nor copied. They are copied before an update is applied."""
        return [tensors for tensors in self._frozen if not tensors.released.is_set()]

    def in_use(self) -> AbstractContextManager[object]:
        """A context in which the tensors are read. A replica in a file gives its memory back meanwhile."""
        return nullcontext()

    def give_back(self, tensor: Tensor) -> None:
        """Give back the memory of one of the tensors, which was read outside of torch's functions."""

    def save(self, path: Path) -> None:
        """Write a snapshot (safetensors) to `path`. The caller syncs and renames the file. Raises OSError."""
        save_tensors(self.state, path, about_snapshot(self, self.state_hash().hex()))


def hash_of(tensors: Iterable[Tensor]) -> bytes:
    """SHA-256 of the little-endian bytes of float32 tensors, one after another."""
    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().reshape(-1).numpy().astype("<f4", copy=False)
        digest.update(flat.view(np.uint8).data)
    return digest.digest()


def _zeros(parameters: Iterable[Parameter], device: torch.device) -> dict[str, Tensor]:
    return {one.name: torch.zeros(one.shape, device=device) for one in parameters}


def _checked(tensors: Mapping[str, Tensor], parameters: Iterable[Parameter]) -> dict[str, Tensor]:
    """The tensors in the parameters' order, contiguous. Raises ReplicaError."""
    found: dict[str, Tensor] = {}
    for expected in parameters:
        name, tensor = expected.name, tensors.get(expected.name)
        if tensor is None or tuple(tensor.shape) != expected.shape or tensor.dtype != torch.float32:
            raise ReplicaError(f"parameter {name} is missing or is not float32 of shape {expected.shape}")
        found[name] = tensor.contiguous()
    return found


def about_snapshot(replica: Replica | FrozenReplica, state: str) -> dict[str, str]:
    """The metadata of a snapshot. state: hash of the parameters, in hexadecimal."""
    about = {"thinwire": SNAPSHOT_VERSION, "step": str(replica.step), "head": replica.head.hex()}
    return about | {"contract": replica.contract.hash.hex(), "state": state}


def load_replica(contract: Contract, path: Path, *, is_mapped: bool = False) -> Replica:
    """Read a snapshot onto the CPU. Raises ReplicaError if it is damaged or missing, OtherContract if it belongs to
    another contract, and OSError if the disk fails, which says nothing about the contents.

    is_mapped: take no memory, but read the file again when the tensors are used. They must not be changed, and may have
    subnormal values."""
    with _reading(path):
        step, head, state = _about(contract, path)
        if is_mapped:
            tensors = _checked(MappedTensors(path).tensors, (*contract.parameters, *contract.moments))
        else:
            tensors = read_tensors(path)
        replica = Replica(contract, tensors, step, head, is_checked=is_mapped)
        if replica.state_hash().hex() != state:
            raise ReplicaError(f"{path} is damaged: {NOT_THE_STATE}")
        return replica


def check_snapshot(contract: Contract, path: Path) -> bytes:
    """Read a snapshot piece by piece, and return its head. Raises what `load_replica` does."""
    with _reading(path):
        _, head, state = _about(contract, path)
        shapes = {one.name: one.shape for one in (*contract.parameters, *contract.moments)}
        if hash_of(read_pieces(path, shapes)).hex() != state:
            raise ReplicaError(f"{path} is damaged: {NOT_THE_STATE}")
        return head


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, FileNotFoundError, KeyError, ValueError) as error:
        raise ReplicaError(f"{path} cannot be read as a snapshot: {error}") from None
    except OSError as error:
        error.filename = str(path)  # an error amid the file does not name it
        raise


def _about(contract: Contract, path: Path) -> tuple[int, bytes, str | None]:
    """Step, head and hash of the state of a snapshot."""
    about = read_about(path)
    if about["contract"] != contract.hash.hex():
        raise OtherContract(f"{path} is not a snapshot of this run's contract")
    step, head = int(about["step"]), bytes.fromhex(about["head"])
    if not 0 <= step < STEP_MAX or len(head) != HASH_BYTES:
        raise ReplicaError(f"{path} cannot be read as a snapshot: step {step}, and a head of {len(head)} bytes")
    return step, head, about.get("state")
