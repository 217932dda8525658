"""Shared replicas: a thousand nodes that hold the same bits share them, so each update is applied once.

Only results of the real `Replica.apply` are shared, by (state before, row). After `differ`, a replica has its own bits,
which the real code then has to detect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.update import Update

STATES_KEPT = 200


class SharedReplicas:
    """States by (state before, row), and fingerprints by (state, nonce)."""

    def __init__(self) -> None:
        self.after: dict[tuple[bytes, bytes], tuple[bytes, dict[str, Tensor]]] = {}
        self.fingerprints: dict[tuple[bytes, int], int] = {}

    def forget_oldest(self) -> None:
        for memory in (self.after, self.fingerprints):
            known: dict[Any, Any] = memory
            while len(known) > STATES_KEPT:
                del known[next(iter(known))]


class SharedReplica(Replica):
    def __init__(self, shared: SharedReplicas, replica: Replica) -> None:
        super().__init__(replica.contract, replica.tensors, replica.step, replica.head, is_checked=True)
        self._shared = shared
        self._state: bytes = replica._state if isinstance(replica, SharedReplica) else replica.state_hash()

    def fingerprint(self, nonce: int) -> int:
        known = self._shared.fingerprints
        if (self._state, nonce) not in known:
            known[self._state, nonce] = super().fingerprint(nonce)
        return known[self._state, nonce]

    def apply(self, update: Update, head: bytes) -> None:
        found = self._shared.after.get((self._state, head))
        if found is None:
            before = self._state
            self.tensors = self._copied()
            super().apply(update, head)
            self._state = self.state_hash()
            self._shared.after[before, head] = (self._state, self.tensors)
            self._shared.forget_oldest()
            return
        if update.step != self.step:
            super().apply(update, head)  # raises
        self._state, self.tensors = found
        self.step += 1
        self.head = head

    def go_back(self, earlier: Replica, head: bytes) -> None:
        self.tensors = self._copied()  # others have them too
        super().go_back(earlier, head)
        self._state = self.state_hash()

    def clone(self, device: torch.device | str = "cpu") -> SharedReplica:
        return SharedReplica(self._shared, self)

    def differ(self) -> None:
        """Flip the last bit of one parameter."""
        self.tensors = self._copied()
        next(iter(self.tensors.values())).view(-1).view(torch.int32)[7] ^= 1
        self._state = self.state_hash()

    def _copied(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.tensors.items()}
