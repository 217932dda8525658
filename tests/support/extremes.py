"""Protobuf messages with each field at its extremes, found by descriptors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

TEXTS = ["", "x" * 100_000, "\x1b[2J\r\n\u202e", "é\n", "\x00", "a:99999999", "[::1"]
BYTES = [b"", b"\x00", b"\xff" * 31, b"\xff" * 32, b"\xff" * 33, bytes(100_000)]
FLOATS = [0.0, -1.0, 5e-324, 3e38, 1.7e308, math.inf, -math.inf, math.nan]
REPEATED_MAX = 5000
LARGEST = {
    FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.TYPE_UINT64: (1 << 64) - 1,
    FieldDescriptor.TYPE_FIXED64: (1 << 64) - 1,
}


def scalars(field: Any) -> list[Any]:
    """The extreme values of a field that is no message."""
    if field.type in LARGEST:
        largest = LARGEST[field.type]
        return [0, 1, largest // 2, largest // 2 + 1, largest - 1, largest]
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = [value.number for value in field.enum_type.values]
        return [*known, max(known) + 1, (1 << 31) - 1, -(1 << 31)]
    kinds: dict[int, list[Any]] = {
        FieldDescriptor.TYPE_STRING: TEXTS,
        FieldDescriptor.TYPE_BYTES: BYTES,
        FieldDescriptor.TYPE_BOOL: [False, True],
        FieldDescriptor.TYPE_DOUBLE: FLOATS,
        FieldDescriptor.TYPE_FLOAT: [value for value in FLOATS if not 3e38 < abs(value) < math.inf],
    }
    return kinds[field.type]  # a new type of field needs its extremes here


def extremes(valid: Message) -> Iterator[Message]:
    """Copies of a message, each with one field at one extreme; fields of the messages in it included."""
    for field in valid.DESCRIPTOR.fields:
        yield _changed(valid, partial(_clear, field.name))
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            yield from _inner(valid, field)
        elif field.is_repeated:
            for value in scalars(field):
                for times in (1, 2, REPEATED_MAX):
                    yield _changed(valid, partial(_fill, field.name, [value] * times))
        else:
            for value in scalars(field):
                yield _changed(valid, partial(_set, field.name, value))


def _inner(valid: Message, field: Any) -> Iterator[Message]:
    name = field.name
    if not field.is_repeated:
        for inner in extremes(getattr(valid, name)):
            yield _changed(valid, partial(_replace, name, inner))
        return
    empty = field.message_type._concrete_class()
    first = next(iter(getattr(valid, name)), empty)
    for times in (2, REPEATED_MAX):
        for one in (empty, first):
            yield _changed(valid, partial(_refill, name, [one] * times))
    for inner in extremes(first):
        yield _changed(valid, partial(_refill, name, [inner]))


def _changed(valid: Message, change: Callable[[Any], object]) -> Message:
    copy = type(valid)()
    copy.CopyFrom(valid)
    change(copy)
    return copy


def _clear(name: str, message: Any) -> None:
    message.ClearField(name)


def _set(name: str, value: Any, message: Any) -> None:
    setattr(message, name, value)


def _replace(name: str, value: Message, message: Any) -> None:
    getattr(message, name).CopyFrom(value)


def _fill(name: str, values: list[Any], message: Any) -> None:
    message.ClearField(name)
    if isinstance(values[0], str | bytes):
        values = values if len(values[0]) < 100 else values[:2]
    getattr(message, name).extend(values)


def _refill(name: str, values: list[Message], message: Any) -> None:
    message.ClearField(name)
    getattr(message, name).extend(values)
