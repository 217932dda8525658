"""A row of the ledger, as the coordinator seals it and every node checks it.

Rows form a hash chain. The row of step s names the body of the update that leads from θ_s to θ_{s+1}, who counted with
what weight, and the fingerprint of θ_s (the state before it, so that nothing waits for a decode).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgpack

from thinwire_proto.errors import PayloadError

ROW_BYTES_MAX = 1 << 20
HASH_BYTES = 32
_GENESIS = b"thinwire genesis 1"


@dataclass(frozen=True)
class Counted:
    """One contribution that is in an update."""

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

    def canonical(self) -> bytes:
        """The one way to write this row down (a msgpack array)."""
        counted = [[entry.node, entry.contribution, entry.weight, entry.samples] for entry in self.counted]
        fields = [self.step, self.round, self.term, self.nonce, self.fingerprint, self.body_hash, self.body_bytes]
        return bytes(msgpack.packb([*fields, counted, self.previous], use_bin_type=True))

    @cached_property
    def hash(self) -> bytes:
        """32 bytes; the `previous` of the next row, and the head of a replica at step + 1."""
        return hashlib.sha256(self.canonical()).digest()

    @cached_property
    def contributions(self) -> frozenset[bytes]:
        """The hashes of those that are in the update."""
        return frozenset(entry.contribution for entry in self.counted)


def genesis(contract_hash: bytes, first_state_hash: bytes) -> bytes:
    """What the first row has for its `previous`: the chain hangs on the contract and on the first state."""
    return hashlib.sha256(_GENESIS + contract_hash + first_state_hash).digest()


def contribution_hash(contract_hash: bytes, term: int, round_number: int, node: str, payload: bytes) -> bytes:
    """The name of a contribution, by which its receipt can be asked for."""
    head = msgpack.packb([contract_hash, term, round_number, node], use_bin_type=True)
    return hashlib.sha256(head + hashlib.sha256(payload).digest()).digest()


@lru_cache(maxsize=8)  # whoever holds several replicas, as a simulation does, reads each row once
def parse_row(data: bytes) -> Row:
    """Read a canonical row. Raises PayloadError."""
    if len(data) > ROW_BYTES_MAX:
        raise PayloadError(f"a row has at most {ROW_BYTES_MAX} bytes; this has {len(data)}")
    try:
        step, round_number, term, nonce, fingerprint, body_hash, body_bytes, counted, previous = msgpack.unpackb(
            data, raw=False
        )
        entries = tuple(Counted(*entry) for entry in counted)
        row = Row(step, round_number, term, nonce, fingerprint, body_hash, body_bytes, entries, previous)
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
        raise PayloadError("this is not a row: a field has another type or length than a row's")
    if row.canonical() != data:
        raise PayloadError("this is not a row as it is written: its hash would be another one")
    return row
