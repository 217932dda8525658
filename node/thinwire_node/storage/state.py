"""The node's state directory. It holds the node's state between two runs of the process.

Any file may be lost; the node then fetches or creates it again. It drops a momentum that has no `sent.json` beside it.

identity.key              the node's secret key, created once; its id is the hash of the public key
enrolment.json            the invite and the name that the node joined with: see `enrolment`
contract.json, corpus.zst the contract and the data file of the node's run
head.json                 the newest sealed row that the node has seen
replica.safetensors       the parameters, saved periodically
momentum.safetensors      the momentum after an extraction, with the contribution that was extracted
sent.json                 contributions sent since that save. The saved momentum still contains them, so the node must
                          drop it if one of them was counted
coordinators.json         where else the coordinator may be, once there was a standby: see `known_coordinators`
gossip.safetensors        in a gossip run, in place of the last three: see `gossip.journal`
blobs/                    shards of data and weights of a base: see `blob_cache`
snapshot-STEP.part        a snapshot that is partly downloaded
corpus.part               the data file, partly downloaded
status.json               the newest report, at most a few seconds old, for `thinwire-node status`
lock                      held by the node that runs on this directory
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from thinwire.compression.residual import Pending
from thinwire.compression.sent import sent_from
from thinwire_common.file_system import ELSEWHERE, check_locks, described
from thinwire_common.files import rename_synced, replace_synced, replace_whole, sync_folder
from thinwire_node.storage import enrolment
from thinwire_node.storage.blob_cache import BLOBS, CACHE_BYTES, BlobCache
from thinwire_node.storage.known_coordinators import FILE as KNOWN
from thinwire_node.storage.known_coordinators import KnownCoordinators, read_known
from thinwire_proto import limits
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.errors import MEND_OWNER, ConfigError, ContractError, PayloadError, ReplicaError, UsageError
from thinwire_proto.exact.mapped import MappedTensors
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.exact.tensor_files import read_about, read_tensors, save_tensors
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import KEY_FILE, open_key
from thinwire_proto.identity.private_files import keeps_permissions
from thinwire_proto.identity.terms import NO_PROMOTION
from thinwire_proto.task import DataSource, data_kind_of

log = logging.getLogger("thinwire.node")

DATA_FILE = "corpus.zst"
DATA_PART = "corpus.part"
REPLICA_FILE = "replica.safetensors"
OF_COORDINATORS = "ledger.sqlite"
"""The file that only a coordinator's state directory has. Its `identity.key` is the key of a run."""
OF_A_RUN = ("sent.json", "momentum.safetensors", "gossip.safetensors", REPLICA_FILE, "head.json")
KEY_LOST = "delete it: the node then joins as a new one, for which it may need a new invite"
PENDING = "pending."  # prefix of the tensors of the pending contribution
AWAITED = "awaited."  # prefix of the tensors of counted contributions whose update is not applied yet


@dataclass(frozen=True)
class Head:
    """The newest sealed row that this node has seen: the step that it led to, and its hash."""

    step: int
    hash: bytes


class PartialSnapshot(NamedTuple):
    """A snapshot that is partly downloaded: its file, its step and the number of bytes present."""

    path: Path
    step: int
    size: int


class Written(NamedTuple):
    """A temporary file that is complete, and the name of the file that it will replace."""

    passing: Path
    name: str


@dataclass(frozen=True)
class KeptMomentum:
    """The momentum as it is saved.

    momentum: tensors by name (see `Momentum.state`). trained_through: the last sample position in it. pending: the
    contribution without a receipt. awaited: with update_topk, contributions whose update is not applied yet; may
    include the pending one."""

    momentum: dict[str, Tensor]
    trained_through: int | None
    pending: Pending | None
    awaited: tuple[Pending, ...] = ()


class NodeState:
    """Opens or creates a state directory and locks it against other nodes. Raises ConfigError.

    cache_bytes: bound on the size of the blobs that it keeps."""

    def __init__(self, folder: Path, cache_bytes: int = CACHE_BYTES) -> None:
        self._folder = folder
        try:
            if (folder / OF_COORDINATORS).exists():
                raise UsageError(f"{folder} is the state directory of a coordinator; give another --state-dir")
            folder.mkdir(parents=True, exist_ok=True)
            check_locks(folder)
            if not keeps_permissions(folder):
                text = "%s keeps no permissions, so all users of this machine can read the node's key and invite; if "
                log.warning(text + "others use it, %s", described(folder), ELSEWHERE)
            self._lock = FileLock(folder / "lock")
            self._lock.acquire(timeout=limits.LOCK_WAIT_S)
            self._sweep()
            self.key = open_key(folder / KEY_FILE, KEY_LOST)
            self.node_id = self.key.public.node_id
            self.blobs = BlobCache(folder / BLOBS, cache_bytes)
            self.head = self._read_head()
            self.known = read_known(self.path(KNOWN))
        except Timeout:
            raise ConfigError(
                f"{folder}: another node runs on this state directory; give another --state-dir"
            ) from None
        except OSError as error:
            reason = error.strerror or error
            advice = f"{MEND_OWNER} Or give" if isinstance(error, PermissionError) else "give"
            raise ConfigError(
                f"{folder}: cannot be used as a state directory: {reason}; {advice} another --state-dir"
            ) from None

    def _sweep(self) -> None:
        """Remove files that a killed process left incomplete. Keep partial downloads, which resume."""
        for path in (*self._folder.glob("*.part"), *self._folder.glob(".tmp*")):
            if path.name != DATA_PART and not path.name.startswith("snapshot-") and path.is_file():
                path.unlink()

    def close(self) -> None:
        self._lock.release()

    def path(self, name: str) -> Path:
        return self._folder / name

    def write(self, name: str, data: bytes) -> None:
        """Replace a file. It is synced to disk when this returns."""
        replace_synced(self.path(name), data)

    def rename(self, passing: Path, name: str) -> None:
        """Move a temporary file to its name. It is synced to disk when this returns."""
        rename_synced(passing, self.path(name))

    def keep_enrolment(self, invite: Invite, name: str) -> None:
        """Keep an invite and a name that the coordinator has accepted; see `enrolment`."""
        enrolment.keep(self._folder, invite, name)

    def keep_known(self, known: KnownCoordinators) -> None:
        """Keep what the node has learned of its coordinators; on disk when this returns."""
        if known != self.known:
            self.write(KNOWN, known.written())
            self.known = known

    def contract(self) -> Contract | None:
        """The contract of the run that this directory belongs to, or None. Raises ConfigError."""
        path = self.path("contract.json")
        if not path.exists():
            return None
        try:
            return parse_contract(path.read_bytes())
        except ContractError as error:
            advice = "if the file is damaged, delete it: the node fetches it again"
            raise ConfigError(f"{path}: {error}; {advice}") from None

    def forget_run(self) -> None:
        """Remove what belongs to the run, but for its data, which another run may have too. The contract goes last."""
        for path in (*(self.path(name) for name in OF_A_RUN), *self._folder.glob("snapshot-*.part")):
            path.unlink(missing_ok=True)
        self.head = None
        self.keep_known(replace(self.known, term=NO_PROMOTION))
        sync_folder(self._folder)
        self.path("contract.json").unlink(missing_ok=True)
        sync_folder(self._folder)

    def forget_rows(self) -> None:
        """Remove the newest row and the parameters that it led to: they were lost with a coordinator."""
        for path in (self.path(REPLICA_FILE), self.path("head.json"), *self._folder.glob("snapshot-*.part")):
            path.unlink(missing_ok=True)
        self.head = None
        sync_folder(self._folder)

    def data(self, contract: Contract) -> DataSource | None:
        """The run's data, or None if the node must fetch it."""
        kind = data_kind_of(contract.data)
        is_fetched = kind.file_bytes_max(contract.data) > 0
        try:
            return kind.open(self.path(DATA_FILE).read_bytes() if is_fetched else b"", contract, self.blobs)
        except (FileNotFoundError, PayloadError):
            return None

    def _read_head(self) -> Head | None:
        try:
            found = json.loads(self.path("head.json").read_text())
            return Head(int(found["step"]), bytes.fromhex(found["hash"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def advance(self, head: Head) -> None:
        """Take a head if it is newer than the known one. Replaying old updates thus does not set it back."""
        if self.head is None or head.step > self.head.step:
            self.head = head

    def write_head(self) -> None:
        if (head := self.head) is not None:
            text = json.dumps({"step": head.step, "hash": head.hash.hex()})
            replace_whole(self.path("head.json"), text.encode())  # an older head after a crash does no harm

    def replica(self, contract: Contract, *, is_mapped: bool = False) -> Replica | None:
        """The saved replica, or None if there is no valid one. is_mapped: see `load_replica`."""
        try:
            return load_replica(contract, self.path(REPLICA_FILE), is_mapped=is_mapped)
        except (ReplicaError, OSError):
            return None

    def write_replica(self, replica: Replica) -> Written:
        """Write the parameters to a temporary file, which `publish` makes the saved one. They must not change
        meanwhile. Raises OSError."""
        written = Written(self.path("replica.part"), REPLICA_FILE)
        replica.save(written.passing)
        return written

    def write_momentum(self, kept: KeptMomentum) -> Written:
        """The same for the momentum."""
        tensors = dict(kept.momentum)
        about = {} if kept.trained_through is None else {"trained_through": str(kept.trained_through)}
        if kept.pending is not None:
            tensors |= _tensors_of(kept.pending, PENDING)
            about["pending"] = kept.pending.hash.hex()
        for number, one in enumerate(kept.awaited):
            about[f"{AWAITED}{number}"] = f"{one.hash.hex()} {one.step} {one.sent.extraction}"
            tensors |= _tensors_of(one, f"{AWAITED}{number}.")
        written = Written(self.path("momentum.part"), "momentum.safetensors")
        save_tensors(tensors, written.passing, about)
        return written

    def publish(self, *written: Written) -> None:
        """Replace saved files by newly written ones, one after the other. They are synced to disk when this returns."""
        for passing, name in written:
            self.rename(passing, name)

    def momentum(self, shapes: Mapping[str, tuple[int, ...]], *, is_mapped: bool = False) -> KeptMomentum | None:
        """The saved momentum. None if the file is missing, unreadable, not finite, or has tensors of other shapes.
        is_mapped: take no memory, but read the file again when the tensors are used. They must not be changed."""
        try:
            path = self.path("momentum.safetensors")
            about, tensors = read_about(path), MappedTensors(path).tensors if is_mapped else read_tensors(path)
            if is_mapped:  # what outlives the momentum must not hold the file, which is about to be replaced
                tensors = {name: one if name in shapes else one.clone() for name, one in tensors.items()}
            mark = int(about["trained_through"]) if "trained_through" in about else None
            pending: Pending | None = None
            awaited: list[Pending] = []
            if "pending" in about:
                pending = Pending(bytes.fromhex(about["pending"]), sent_from(tensors, PENDING, 0))
            while (key := f"{AWAITED}{len(awaited)}") in about:
                name, step, extraction = about[key].split()
                awaited.append(Pending(bytes.fromhex(name), sent_from(tensors, key + ".", int(extraction)), int(step)))
        except (OSError, SafetensorError, KeyError, ValueError):
            return None
        fits = {name: tuple(tensor.shape) for name, tensor in tensors.items()} == dict(shapes) and all(
            tensor.dtype == torch.float32 and bool(torch.isfinite(tensor).all()) for tensor in tensors.values()
        )
        return KeptMomentum(tensors, mark, pending, tuple(awaited)) if fits else None

    def drop_momentum(self) -> None:
        self.path("momentum.safetensors").unlink(missing_ok=True)
        sync_folder(self._folder)  # else the file could reappear after a power cut, without its list of sent names
        self.save_sent([])

    def save_sent(self, contributions: list[bytes]) -> None:
        """Store the hashes of the sent contributions. Must return before any of them is sent."""
        self.write("sent.json", json.dumps([contribution.hex() for contribution in contributions]).encode())

    def sent(self) -> list[bytes] | None:
        """Contributions sent since the momentum was saved; None if the list is damaged."""
        path = self.path("sent.json")
        try:
            return [bytes.fromhex(text) for text in json.loads(path.read_text())]
        except FileNotFoundError:
            return None if self.path("momentum.safetensors").exists() else []
        except (OSError, ValueError, TypeError):
            return None

    def partial_snapshot(self) -> PartialSnapshot | None:
        """A snapshot that is partly downloaded, if there is one."""
        for path in self._folder.glob("snapshot-*.part"):
            step = path.stem.removeprefix("snapshot-")
            if step.isdecimal():
                return PartialSnapshot(path, int(step), path.stat().st_size)
        return None


def _tensors_of(one: Pending, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in one.sent.tensors().items()}
