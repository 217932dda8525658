"""Split bytes into bounded parts, and assemble them again. Both the parts and the whole have upper bounds."""

from __future__ import annotations

from collections.abc import Iterator

from thinwire_proto.errors import PayloadError

PART_BYTES_MAX = 1 << 20
"""Largest part that is taken."""
PART_BYTES = 256 << 10
"""Of those that a node sends. It takes 33 s at 64 kbit/s, and the next part has PART_S."""
FIRST_PART_BYTES = 16 << 10
"""Of the first part that a node sends, which has FIRST_MESSAGE_S."""
EXAMINE_BYTES = 1 << 20
"""Padding of a call of Examine in each direction."""
EXAMINE_PART_BYTES = 256 << 10
"""Padding of one of its messages."""
MESSAGE_BYTES_MAX = 2 * PART_BYTES_MAX
"""Largest gRPC message on either side: one part with its envelope."""


def split_for_upload(data: bytes) -> Iterator[bytes]:
    """Yield the parts of `data` as a node sends them, whose line up may be thin: at least one, even if it is empty."""
    return _split(data, FIRST_PART_BYTES, PART_BYTES)


def split_for_download(data: bytes) -> Iterator[bytes]:
    """The same as a coordinator sends an update to its followers."""
    return _split(data, PART_BYTES_MAX, PART_BYTES_MAX)


def _split(data: bytes, first_bytes: int, part_bytes: int) -> Iterator[bytes]:
    view = memoryview(data)
    yield bytes(view[:first_bytes])
    for start in range(first_bytes, len(data), part_bytes):
        yield bytes(view[start : start + part_bytes])


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
