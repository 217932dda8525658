"""Damages payloads: bytes, or the fields with their frames, so that the checks behind the first one are reached too."""

from __future__ import annotations

import random

import msgpack
import zstandard

from fuzz.mutations import damage_bytes

CONTENT_BYTES_MAX = 1 << 20


def damage_payload(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change bytes; or replace fields by those of other payloads, other numbers, or frames with other contents."""
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice([rng.randbytes(rng.randrange(200)), data + rng.randbytes(rng.randrange(1, 40)), _nested(rng)])
    fields, spliced = _fields(data), _fields(rng.choice(others)) or [0]
    if kind <= 4 or not fields:
        return damage_bytes(rng, data, others)
    for _ in range(rng.randrange(1, 3)):
        index = rng.randrange(len(fields))
        fields[index] = other_field(rng, fields[index], spliced)
    if kind == 8:
        index = rng.randrange(len(fields))
        fields[index : index + 1] = rng.choice([[], [fields[index], rng.choice(spliced)], [[fields[index]]]])
    try:
        return bytes(msgpack.packb(fields))
    except (ValueError, OverflowError):
        return damage_bytes(rng, data, others)


def _fields(data: bytes) -> list[object]:
    """The fields of a payload; none if it cannot be read."""
    try:
        found = msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException):
        return []
    return found if isinstance(found, list) else []


def _nested(rng: random.Random) -> bytes:
    """Thousands of arrays in an array, each one byte of input."""
    return b"\x9f" + b"\x9f".join(b"\x90" * 14 for _ in range(rng.randrange(1, 3000)))


def other_field(rng: random.Random, field: object, others: list[object]) -> object:
    if rng.random() < 0.3:
        return rng.choice(others)
    if isinstance(field, int):
        return rng.choice([0, 1, 2, 255, 2**31, 2**63, rng.randrange(2**20), max(0, field + rng.randrange(-2, 3))])
    if not isinstance(field, bytes):
        return rng.choice(others)
    try:
        if zstandard.get_frame_parameters(field).content_size > CONTENT_BYTES_MAX:
            raise zstandard.ZstdError  # it would be allocated at once
        content = bytearray(zstandard.ZstdDecompressor().decompress(field, max_output_size=CONTENT_BYTES_MAX))
    except zstandard.ZstdError:
        content = bytearray(field)
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return bytes(content)
    for _ in range(rng.randrange(1, 4)):
        if content:
            content[rng.randrange(len(content))] = rng.choice([0, 1, 63, 64, 254, 255, rng.randrange(256)])
    if rng.random() < 0.2:
        content += bytes(rng.randrange(3000))
    return zstandard.ZstdCompressor().compress(bytes(content))
