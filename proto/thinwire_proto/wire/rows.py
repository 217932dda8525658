"""The rows of the ledger, which the coordinator seals and every node checks.

Rows form a hash chain. The row of step s names the body of the update from θ_s to θ_{s+1}, the counted contributions
with their weights, and the fingerprint of θ_s. The fingerprint is that of the state before the update, so that sealing
does not wait for a decode.

A row is `[VERSION, nine fields, a map of optional fields]`. The hash covers the optional fields. A reader keeps fields
that it does not know and writes them again, so a later version can add fields compatibly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import msgpack

from thinwire_proto.errors import PayloadError

VERSION = 2
ROW_BYTES_MAX = 1 << 20
EXTRAS_MAX = 64
"""Maximum number of optional fields of a row."""
EXTRAS_DEPTH_MAX = 8
"""Maximum nesting of arrays and maps in an optional field."""
HASH_BYTES = 32
_GENESIS = b"thinwire genesis 1"


@dataclass(frozen=True)
class Counted:
    """One contribution in an update."""

    node: str
    contribution: bytes  # 32, the contribution's hash
    weight: int
    samples: int


@dataclass(frozen=True)
class Row:
    step: int
    round: int
    term: int
    nonce: int
    fingerprint: int  # of θ_step under nonce
    body_hash: bytes  # 32
    body_bytes: int
    counted: tuple[Counted, ...]
    previous: bytes  # 32, hash of the row before
    extras: Mapping[str, Any] = field(default_factory=dict, hash=False)  # optional fields

    def canonical(self) -> bytes:
        """The canonical msgpack encoding of this row."""
        counted = [[entry.node, entry.contribution, entry.weight, entry.samples] for entry in self.counted]
        fields = [self.step, self.round, self.term, self.nonce, self.fingerprint, self.body_hash, self.body_bytes]
        fields += [counted, self.previous]
        return bytes(msgpack.packb([VERSION, fields, _sorted(self.extras)], use_bin_type=True))

    @cached_property
    def hash(self) -> bytes:
        """The row's hash, 32 bytes: the next row's `previous`, and the head of a replica at step + 1."""
        return hashlib.sha256(self.canonical()).digest()

    @cached_property
    def contributions(self) -> frozenset[bytes]:
        """The hashes of the contributions in the update."""
        return frozenset(entry.contribution for entry in self.counted)


def genesis(contract_hash: bytes, first_state_hash: bytes) -> bytes:
    """The `previous` of the first row, which binds the chain to the contract and the first state."""
    return hashlib.sha256(_GENESIS + contract_hash + first_state_hash).digest()


def contribution_hash(contract_hash: bytes, term: int, round_number: int, node: str, payload: bytes) -> bytes:
    """The hash of a contribution, which identifies it when a node asks for its receipt."""
    head = msgpack.packb([contract_hash, term, round_number, node], use_bin_type=True)
    return hashlib.sha256(head + hashlib.sha256(payload).digest()).digest()


@lru_cache(maxsize=8)  # a process with several replicas, such as a simulation, parses each row once
def parse_row(data: bytes) -> Row:
    """Read a canonical row. Raises PayloadError."""
    if len(data) > ROW_BYTES_MAX:
        raise PayloadError(f"a row has at most {ROW_BYTES_MAX} bytes; this has {len(data)}")
    try:
        fields, extras = _envelope(msgpack.unpackb(data, raw=False))
        step, round_number, term, nonce, fingerprint, body_hash, body_bytes, counted, previous = fields
        entries = tuple(Counted(*entry) for entry in counted)
        row = Row(step, round_number, term, nonce, fingerprint, body_hash, body_bytes, entries, previous, extras)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PayloadError(f"this is not a row: {error or type(error).__name__}") from None
    numbers = [row.step, row.round, row.term, row.nonce, row.fingerprint, row.body_bytes]
    hashes = (row.body_hash, row.previous, *(entry.contribution for entry in row.counted))
    numbers += [number for entry in row.counted for number in (entry.weight, entry.samples)]
    if (
        not all(type(number) is int and number >= 0 for number in numbers)
        or not all(type(value) is bytes and len(value) == HASH_BYTES for value in hashes)
        or not all(type(entry.node) is str for entry in row.counted)
    ):
        raise PayloadError("this is not a row: a field has the wrong type or length")
    if row.canonical() != data:
        raise PayloadError("this row is not in canonical form, so its hash would differ")
    return row


def pack_extras(extras: Mapping[str, Any]) -> bytes:
    return bytes(msgpack.packb(_sorted(extras), use_bin_type=True))


def unpack_extras(data: bytes) -> dict[str, Any]:
    """Read packed optional fields. Raises ValueError."""
    return _checked_extras(msgpack.unpackb(data, raw=False))


def _envelope(found: object) -> tuple[list[Any], dict[str, Any]]:
    """Return required fields and optional fields. Raises ValueError."""
    if not (isinstance(found, list) and len(found) == 3 and type(found[0]) is int and isinstance(found[1], list)):
        raise ValueError("it is not an array of a version, fields and optional fields")
    if found[0] != VERSION:
        raise ValueError(f"it has version {found[0]}, but this thinwire reads version {VERSION}; update thinwire")
    return found[1], _checked_extras(found[2])


def _checked_extras(found: object) -> dict[str, Any]:
    if not isinstance(found, dict) or len(found) > EXTRAS_MAX:
        raise ValueError(f"its optional fields are not a map of at most {EXTRAS_MAX} entries")
    _check_plain(found, EXTRAS_DEPTH_MAX)
    return found


def _check_plain(value: object, depth: int) -> None:
    """Raise ValueError unless a value consists of maps with string keys, arrays, numbers, strings and bytes."""
    if depth < 0:
        raise ValueError("an optional field is nested too deeply")
    if isinstance(value, dict):
        if not all(type(key) is str for key in value):
            raise ValueError("the keys of optional fields must be strings")
        for inner in value.values():
            _check_plain(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check_plain(inner, depth - 1)
    elif not (value is None or type(value) in (bool, int, float, str, bytes)):
        raise ValueError(f"an optional field holds a {type(value).__name__}")


def _sorted(value: Any) -> Any:
    """A copy with the keys of every map sorted."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value
