"""Counts the bytes of the tensors that are alive, operation by operation, on the thread that computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, `peak_bytes` is the most memory that results of operations held together."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._now_bytes = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place not in self._alive:
            self._alive.add(place)
            self._now_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._now_bytes)
            weakref.finalize(storage, self._end, place, size)

    def _end(self, place: int, size: int) -> None:
        self._alive.discard(place)
        self._now_bytes -= size
