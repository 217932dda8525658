"""Split bytes into bounded parts, and assemble them again. Both the parts and the whole have upper bounds."""

from __future__ import annotations

from collections.abc import Iterator

from thinwire_proto.errors import PayloadError

PART_BYTES_MAX = 1 << 20
MESSAGE_BYTES_MAX = 2 * PART_BYTES_MAX
"""Largest gRPC message on either side: one part with its envelope."""


def split(data: bytes, first_bytes: int = PART_BYTES_MAX) -> Iterator[bytes]:
    """Yield the parts of `data`: at least one, even when it is empty. first_bytes: the first part has no more."""
    view = memoryview(data)
    yield bytes(view[:first_bytes])
    for start in range(first_bytes, len(data), PART_BYTES_MAX):
        yield bytes(view[start : start + PART_BYTES_MAX])


class Assembly:
    """Assembles parts up to the announced size, which must not exceed `size_max`. Raises PayloadError."""

    def __init__(self, size: int, size_max: int, what: str) -> None:
        if not 0 <= size <= size_max:
            raise PayloadError(f"{what}: {size} bytes announced; the contract allows {size_max}")
        self._size = size
        self._what = what
        self._data = bytearray()

    @property
    def complete(self) -> bool:
        return len(self._data) == self._size

    def add(self, part: bytes) -> None:
        if not part and self._size:  # otherwise empty parts could keep the reader busy for ever
            raise PayloadError(f"{self._what}: a part is empty")
        if len(self._data) + len(part) > self._size:
            raise PayloadError(f"{self._what}: more bytes came than the {self._size} announced")
        self._data += part

    def whole(self) -> bytes:
        if not self.complete:
            raise PayloadError(f"{self._what}: it ends after {len(self._data)} of {self._size} bytes")
        return bytes(self._data)
