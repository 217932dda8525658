"""The node's state directory: what it keeps between two lives. Any file in it may be lost; the node then fetches anew.

node_id                   made once
contract.json, corpus.zst of the run that it takes part in
head.json                 the newest sealed row that it has seen
replica.safetensors       its parameters, now and then
momentum.safetensors      its momentum, written when it leaves in good order and taken away when it is loaded, so
                          that nothing is counted twice
lock                      held by the node that runs on this directory
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from thinwire_node.demo import Sent
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.corpus import Corpus, unpack_corpus
from thinwire_proto.errors import ConfigError, ContractError, PayloadError, ReplicaError
from thinwire_proto.replica import Replica, load_replica, save_tensors

NODE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Head:
    """The newest sealed row that this node has seen: the step it led to, and its hash."""

    step: int
    hash: bytes


@dataclass(frozen=True)
class Pending:
    """A contribution whose receipt is still out: its hash, and what it took out of the momentum."""

    hash: bytes
    sent: Sent


@dataclass(frozen=True)
class KeptMomentum:
    """What of the momentum goes on disk: a flat buffer in tile space, the step that it was kept at, and what is out."""

    momentum: Tensor
    step: int
    pending: Pending | None


class NodeState:
    """Opens or makes a state directory and keeps other nodes off it. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / "lock")
            self._lock.acquire(blocking=False)
            self.node_id = self._identity()
            self.head = self._read_head()
        except Timeout:
            raise ConfigError(
                f"{folder}: another node runs on this state directory; give another --state-dir"
            ) from None
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"{folder}: cannot be used as a state directory: {reason}; give another --state-dir"
            ) from None

    def close(self) -> None:
        self._lock.release()

    def path(self, name: str) -> Path:
        return self._folder / name

    def _identity(self) -> str:
        path = self.path("node_id")
        if path.exists() and NODE_ID.fullmatch(found := path.read_text(errors="replace").strip()):
            return found
        node_id = secrets.token_hex(16)
        self.write("node_id", node_id.encode())
        return node_id

    def write(self, name: str, data: bytes) -> None:
        """Put `data` in place of the file, whole or not at all."""
        passing = self.path(name + ".part")
        passing.write_bytes(data)
        self.rename(passing, name)

    def rename(self, passing: Path, name: str) -> None:
        with passing.open("r+b") as file:
            os.fsync(file.fileno())
        passing.replace(self.path(name))

    def contract(self) -> Contract | None:
        """The contract of the run that this directory belongs to, if it belongs to one."""
        path = self.path("contract.json")
        if not path.exists():
            return None
        try:
            return parse_contract(path.read_bytes())
        except ContractError as error:
            raise ConfigError(f"{path}: {error}; give another --state-dir") from None

    def corpus(self, contract: Contract) -> Corpus | None:
        try:
            return unpack_corpus(self.path("corpus.zst").read_bytes(), contract.data)
        except (FileNotFoundError, PayloadError):
            return None

    def _read_head(self) -> Head | None:
        try:
            found = json.loads(self.path("head.json").read_text())
            return Head(int(found["step"]), bytes.fromhex(found["hash"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save_head(self, head: Head) -> None:
        """Remember a head, if it is newer than the newest: replaying old updates forgets nothing."""
        if self.head is None or head.step > self.head.step:
            self.head = head
            self.write("head.json", json.dumps({"step": head.step, "hash": head.hash.hex()}).encode())

    def replica(self, contract: Contract) -> Replica | None:
        try:
            return load_replica(contract, self.path("replica.safetensors"))
        except ReplicaError:
            return None

    def save_replica(self, replica: Replica) -> None:
        passing = self.path("replica.part")
        replica.save(passing)
        self.rename(passing, "replica.safetensors")

    def save_momentum(self, kept: KeptMomentum) -> None:
        tensors = {"momentum": kept.momentum.cpu()}
        about = {"step": str(kept.step)}
        if kept.pending is not None:
            tensors |= {"components": kept.pending.sent.components.cpu(), "values": kept.pending.sent.values.cpu()}
            about["pending"] = kept.pending.hash.hex()
        passing = self.path("momentum.part")
        save_tensors(tensors, passing, about)
        self.rename(passing, "momentum.safetensors")

    def take_momentum(self, components: int) -> KeptMomentum | None:
        """The momentum of the last good leave, once, if it is one of a tile space of that size."""
        path = self.path("momentum.safetensors")
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                # copies: see replica.load_replica
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            kept = KeptMomentum(tensors["momentum"], int(about["step"]), None)
            if "pending" in about:
                sent = Sent(tensors["components"], tensors["values"], 0)
                kept = replace(kept, pending=Pending(bytes.fromhex(about["pending"]), sent))
        except (OSError, SafetensorError, KeyError, ValueError):
            return None
        path.unlink()
        fits = kept.momentum.shape == (components,) and kept.momentum.dtype == torch.float32
        return kept if fits and bool(torch.isfinite(kept.momentum).all()) else None
