"""Damages protobuf messages: by their fields, and by what protobuf allows on the wire beside them."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from fuzz.mutations import FLOATS, NUMBERS, TEXTS, Damage, damage_bytes

INTEGERS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}
REPEATS = (1, 1, 1, 2, 3, 20, 500)
LENGTHS = (0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 255, 300, 5000)


def damage_of(kind: type[Message]) -> Damage:
    """A damage for serialized messages of a kind."""

    def damage(rng: Random, data: bytes, others: list[bytes]) -> bytes:
        choice = rng.random()
        if choice < 0.25:
            return damage_bytes(rng, data, others)
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return damage_bytes(rng, data, others)
        for _ in range(rng.choice((1, 1, 2, 3))):
            damage_field(rng, message)
        written = message.SerializeToString()
        return written + unknown_field(rng) if choice < 0.35 else written

    return damage


def damage_field(rng: Random, message: Message) -> None:
    """Change one field of a message, or of a message in it."""
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = rng.choice(fields)
    if rng.random() < 0.08:
        message.ClearField(field.name)
    elif field.is_repeated:
        _damage_repeated(rng, field, getattr(message, field.name))
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        inner = getattr(message, field.name)
        inner.SetInParent()
        damage_field(rng, inner)
    else:
        setattr(message, field.name, value_of(rng, field, getattr(message, field.name)))


def _damage_repeated(rng: Random, field: FieldDescriptor, values: Any) -> None:
    if len(values) and rng.random() < 0.3:
        del values[rng.randrange(len(values))]
        return
    for _ in range(rng.choice(REPEATS)):
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            damage_field(rng, values.add())
        else:
            values.append(value_of(rng, field, None))


def value_of(rng: Random, field: FieldDescriptor, before: Any) -> Any:
    """A value that the field can hold: at an edge, near the one before, or random."""
    if field.type in INTEGERS:
        low, high = INTEGERS[field.type]
        near = before + rng.choice((-1, 1, 2, 100)) if isinstance(before, int) else 0
        found = rng.choice((near, near, rng.choice(NUMBERS), rng.randrange(1 << rng.randrange(1, 65))))
        return min(high, max(low, found))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice((*FLOATS, rng.uniform(-10, 10)))
    if field.type == FieldDescriptor.TYPE_STRING:
        text = before or ""
        return rng.choice((*TEXTS, text[: len(text) // 2], text + "x", text.upper(), "n" * rng.choice(LENGTHS)))
    if isinstance(before, bytes) and before and rng.random() < 0.4:
        return damage_bytes(rng, before, [before])
    return rng.randbytes(rng.choice(LENGTHS))


def unknown_field(rng: Random) -> bytes:
    """A field that no message has, of any wire type, valid or not."""
    number, wire = rng.choice((15, 99, 2**29 - 1, 0)), rng.randrange(8)
    body = rng.choice((b"\x00", b"\x05abcde", b"\xff" * 10, b"\x80" * 11, rng.randbytes(8), b"\x0b" * 200))
    return varint(number << 3 | wire) + body


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
