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
import secrets
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.corpus import Corpus, unpack_corpus
from thinwire_proto.errors import ConfigError, ContractError, PayloadError, ReplicaError
from thinwire_proto.replica import Replica, load_replica

PLAUSIBLE_ID_LENGTH = 32


@dataclass(frozen=True)
class Head:
    """The newest sealed row that this node has seen: the step it led to, and its hash."""

    step: int
    hash: bytes


class NodeState:
    """Opens or makes a state directory and keeps other nodes off it. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / "lock")
            self._lock.acquire(blocking=False)
            self.node_id = self._identity()
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
        if path.exists() and len(found := path.read_text().strip()) == PLAUSIBLE_ID_LENGTH:
            return found
        node_id = secrets.token_hex(PLAUSIBLE_ID_LENGTH // 2)
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

    def head(self) -> Head | None:
        try:
            found = json.loads(self.path("head.json").read_text())
            return Head(int(found["step"]), bytes.fromhex(found["hash"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save_head(self, head: Head) -> None:
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

    def save_momentum(self, momentum: Tensor) -> None:
        passing = self.path("momentum.part")
        save_file({"momentum": momentum.cpu()}, passing)
        self.rename(passing, "momentum.safetensors")

    def take_momentum(self, like: Tensor) -> Tensor | None:
        """The momentum of the last good leave, once."""
        path = self.path("momentum.safetensors")
        try:
            momentum = load_file(path)["momentum"].clone()  # see replica.load_replica
        except (OSError, SafetensorError, KeyError):
            return None
        path.unlink()
        fits = momentum.shape == like.shape and momentum.dtype == like.dtype and bool(torch.isfinite(momentum).all())
        return momentum if fits else None
