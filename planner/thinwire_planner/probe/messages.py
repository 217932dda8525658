"""The messages of a probe, in bytes. A connection carries one of them.

request   magic, direction (1: up, 2: down), size; network byte order
up        the asker sends `size` bytes after the request, and gets DONE when all have arrived
down      the answerer sends `size` bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from thinwire_planner.timing.fit import SIZES_BYTES
from thinwire_proto.errors import PayloadError

MAGIC = b"thinwire-probe-1"
REQUEST = struct.Struct(f"!{len(MAGIC)}sBI")
DONE = b"\x06"
SIZE_BYTES_MAX = max(SIZES_BYTES)
PIECE_BYTES = 64 * 1024


class Direction(IntEnum):
    UP = 1
    DOWN = 2


@dataclass(frozen=True)
class Request:
    direction: Direction
    size_bytes: int

    def encode(self) -> bytes:
        return REQUEST.pack(MAGIC, self.direction, self.size_bytes)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Raises PayloadError."""
        magic, direction, size = REQUEST.unpack(data)
        if magic != MAGIC:
            raise PayloadError("probe: this is no request of `thinwire plan --probe` of this version")
        if direction not in set(Direction) or not 1 <= size <= SIZE_BYTES_MAX:
            raise PayloadError(f"probe: direction {direction}, {size} bytes; at most {SIZE_BYTES_MAX} are answered")
        return cls(Direction(direction), size)
