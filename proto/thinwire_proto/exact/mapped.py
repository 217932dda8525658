"""Tensors in a file that is mapped: their pages are the system's cache of the file, and stay in memory only while they
are in use.

A page that was read counts as memory of the process until it is given back. So in the context
`in_use`, the pages of a tensor are given back as soon as an operation of torch that takes it has returned. The next one
finds them in the cache.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from thinwire_proto.exact.tensor_files import OF_NAME, PIECE_BYTES, read_head

GIVES_BACK = hasattr(mmap, "MADV_DONTNEED")
"""Windows has no such call; there the pages stay until the system needs them."""

AROUND_BYTES = 1 << 21
"""Linux maps more of the cache than the page that is read: since 6.18 the whole folio, which begins at a multiple of
its size and has at most so many bytes. It is given back with the page."""
assert AROUND_BYTES % mmap.PAGESIZE == 0


class MappedTensors:
    """The tensors of a safetensors file that nobody changes or cuts off while it is mapped. Only to be read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            entries, begin = read_head(file)
            # not ACCESS_READ, because torch has no read-only tensors
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        bytes_ = torch.frombuffer(self._map, dtype=torch.uint8)
        self._base = bytes_.data_ptr()
        self.tensors: dict[str, Tensor] = {}
        """By name, in the order of the file."""
        for name, entry in entries.items():
            start, end = (begin + offset for offset in entry["data_offsets"])
            self.tensors[name] = bytes_[start:end].view(OF_NAME[entry["dtype"]]).view(entry["shape"])

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A context in which pages are given back after each operation that reads them."""
        try:
            with _PagesGivenBack(self):
                yield
        finally:
            if GIVES_BACK:
                self._map.madvise(mmap.MADV_DONTNEED)

    def one_by_one(self, names: Iterable[str]) -> Iterator[Tensor]:
        """The values of tensors in this order, in flat pieces, of which one is in memory at a time."""
        for name in names:
            for piece in torch.split(self.tensors[name].reshape(-1), PIECE_BYTES // 4):
                yield piece
                self.give_back(piece)

    def give_back(self, tensor: Tensor) -> None:
        """Give back the pages of a tensor, or of a view of one. Others are left alone."""
        if not GIVES_BACK or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return
        if tensor.untyped_storage().data_ptr() != self._base or not tensor.numel():
            return
        reach: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        start = int(tensor.storage_offset()) * tensor.element_size()
        first = start // AROUND_BYTES * AROUND_BYTES
        end = -(-(start + reach * tensor.element_size()) // AROUND_BYTES) * AROUND_BYTES
        self._map.madvise(mmap.MADV_DONTNEED, first, min(end, len(self._map)) - first)


def scratch(shapes: Mapping[str, Sequence[int]], folder: Path) -> dict[str, Tensor]:
    """Float32 tensors to be written, in a file that goes with them: of values that are written once and read once, and
    that need not be in memory together. Raises OSError if the disk has no room."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    handle, name = tempfile.mkstemp(prefix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            _take_room(file, 4 * sum(sizes))
        flat = torch.from_file(name, shared=True, size=sum(sizes), dtype=torch.float32)
    finally:
        with contextlib.suppress(OSError):  # on Windows while it is mapped; the next start removes it
            Path(name).unlink()
    places = torch.split(flat, sizes)
    return {name: place.view(tuple(shape)) for (name, shape), place in zip(shapes.items(), places, strict=True)}


def _take_room(file: BinaryIO, size: int) -> None:
    """Let a file be so long, and have its place on the disk: a mapped file that finds none kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(0, size, PIECE_BYTES):
        file.write(bytes(min(PIECE_BYTES, size - start)))
    file.flush()


class _PagesGivenBack(TorchFunctionMode):
    def __init__(self, mapped: MappedTensors) -> None:
        super().__init__()
        self._mapped = mapped

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._give_back(args)
        self._give_back((kwargs or {}).values())
        return result

    def _give_back(self, arguments: Iterable[Any]) -> None:
        for argument in arguments:
            if isinstance(argument, Tensor):
                self._mapped.give_back(argument)
            elif isinstance(argument, (list, tuple)):
                self._give_back(argument)
