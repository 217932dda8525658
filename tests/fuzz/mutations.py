"""Damages inputs by their format. Each function makes another input from one, by a random generator.

`others` are the inputs known so far; parts of them are spliced in.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import zstandard

from thinwire_proto.contract import canonical_json

Damage = Callable[[Random, bytes, list[bytes]], bytes]

NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, -2, -(2**31), -(2**63)),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 5e-324, 1e38, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", " ", "a", "../../etc/passwd", "\x00", "\x1b[2J", "[/bold]", "\u202e", "é", "a" * 300, "%s%n", "{}", "-1")
CONTENT_BYTES_MAX = 1 << 20
PLAIN: tuple[object, ...] = (*NUMBERS, *FLOATS, *TEXTS, b"", b"\0", b"\xff" * 33, None, True, False, [], {}, [[]])


def damage_bytes(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Flip, cut, repeat, insert and splice bytes, without regard to a format."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        place, kind = rng.randrange(len(changed) + 1), rng.randrange(8)
        if kind <= 2 and changed:
            changed[place % len(changed)] = rng.choice((rng.randrange(256), 0, 255, 0x7F, 0x80))
        elif kind == 3:
            del changed[place:]
        elif kind == 4:
            del changed[place : place + rng.randrange(1, 9)]
        elif kind == 5:
            changed[place:place] = rng.choice((rng.randbytes(rng.randrange(1, 9)), b"\0" * rng.randrange(300)))
        elif kind == 6:
            other, start = rng.choice(others), rng.randrange(64)
            changed[place : place + rng.randrange(64)] = other[start : start + rng.randrange(64)]
        elif changed:
            changed[place % len(changed)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def damage_tree(rng: Random, value: Any, plain: tuple[object, ...] = PLAIN) -> Any:
    """Replace, remove, repeat or move one part of nested lists and maps."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = dict(value)
        kind = rng.randrange(10)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[rng.choice((*TEXTS, key))] = rng.choice(list(value.values()))
        else:
            changed[key] = damage_tree(rng, value[key], plain)
        return changed
    if isinstance(value, list | tuple) and value and rng.random() < 0.9:
        place, items = rng.randrange(len(value)), list(value)
        kind = rng.randrange(10)
        if kind == 0:
            del items[place]
        elif kind == 1:
            items[place:place] = [items[place]] * rng.choice((1, 1, 2, 70, 300))
        else:
            items[place] = damage_tree(rng, items[place], plain)
        return items
    return _other(rng, value, plain)


def _other(rng: Random, value: Any, plain: tuple[object, ...]) -> Any:
    kind = rng.randrange(6)
    if type(value) is int and kind <= 2:
        return value + rng.choice((-1, 1, rng.randrange(-100, 100), value, 10**30))
    if isinstance(value, float) and kind <= 2:
        return value * rng.choice((-1.0, 1e-30, 1e30, 0.1))
    if isinstance(value, str) and kind <= 2:
        return value[: rng.randrange(len(value) + 1)] + rng.choice(TEXTS)
    if isinstance(value, bytes) and kind <= 2:
        return _other_frame(rng, value) or damage_bytes(rng, value, [value])
    if kind == 5:
        return [value] if rng.random() < 0.8 else nested(rng)
    return rng.choice(plain)


def _other_frame(rng: Random, frame: bytes) -> bytes:
    """A zstandard frame with other contents, so that later checks are reached too; empty if it is none."""
    try:
        if zstandard.get_frame_parameters(frame).content_size > CONTENT_BYTES_MAX:
            return b""  # it would be allocated at once
        content = bytearray(zstandard.ZstdDecompressor().decompress(frame, max_output_size=CONTENT_BYTES_MAX))
    except zstandard.ZstdError:
        return b""
    for _ in range(rng.randrange(1, 4)):
        if content:
            content[rng.randrange(len(content))] = rng.choice([0, 1, 63, 64, 254, 255, rng.randrange(256)])
    if rng.random() < 0.2:
        content += bytes(rng.randrange(3000))
    return zstandard.ZstdCompressor().compress(bytes(content))


def nested(rng: Random) -> list[Any]:
    """A deeply nested list."""
    found: list[Any] = []
    for _ in range(rng.choice((2, 20, 400, 900))):
        found = [found]
    return found


def damage_msgpack(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change the tree of a msgpack, and often bytes too."""
    if rng.random() < 0.3:
        return damage_bytes(rng, data, others)
    try:
        tree = msgpack.unpackb(data, raw=False, strict_map_key=False)
        for _ in range(rng.choice((1, 1, 2, 3))):
            tree = damage_tree(rng, tree)
        return bytes(msgpack.packb(tree))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return damage_bytes(rng, data, others)


def damage_json(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change the tree of a JSON document and write it canonically; or change bytes."""
    if rng.random() < 0.2:
        return damage_bytes(rng, data, others)
    try:
        tree = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            tree = damage_tree(rng, tree)
        return canonical_json(tree)
    except (ValueError, TypeError, RecursionError):
        return damage_bytes(rng, data, others)


def damage_safetensors(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change the head of a safetensors file, with or without its length, or bytes."""
    if rng.random() < 0.3 or len(data) < 8:
        return damage_bytes(rng, data, others)
    (length,) = struct.unpack("<Q", data[:8])
    head, body = data[8 : 8 + length], data[8 + length :]
    head = damage_json(rng, head, others)
    length = len(head) if rng.random() < 0.9 else rng.choice(NUMBERS) % 2**64
    return struct.pack("<Q", length) + head + body
