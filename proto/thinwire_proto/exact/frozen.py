"""The tensors of one moment, until they are in a file, while their owner goes on to change them.

A copy in memory would be as large as the tensors. Writing the file while the owner waits would let a slow disk hold it
up. So the tensors stay where they are, and the file is written piece by piece. Before the owner changes them, it calls
`separate`, which copies the pieces that are not written yet: none, if the file was written in time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from thinwire_proto.exact.tensor_files import PIECE_BYTES, bytes_of, head_of


class FrozenTensors:
    """Tensors on the CPU, contiguous. One thread writes the file; the one that changes the tensors calls `separate`.

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
