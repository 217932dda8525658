"""Reports of nodes, and the body of a ledger row that seals those of a beat.

A node signs the canonical bytes of its report, with the session and the number of the report in it. The bytes name the
sketch by its hash alone, so rows stay small and the signature can be checked for ever.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import astuple, dataclass, fields
from typing import Any, Literal

import msgpack
import numpy as np

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import SKETCH_BYTES, SKETCH_NUMBER
from thinwire_proto.identity import statements

BODY_VERSION = 1
HASH_BYTES = 32
SIGNATURE_BYTES = 64
MISSED_MAX = 64
"""Member numbers that a report may name as missed."""
REPORTS_MAX = 8192
"""Reports of a row: those of `round.nodes_max` nodes, once each."""
REPORT_BYTES_MAX = 1024
"""A signed report in a row."""
BODY_BYTES_MAX = REPORTS_MAX * REPORT_BYTES_MAX
_NAME = b"thinwire report 1"
_NOT_A_BEAT = (ValueError, TypeError, struct.error, OverflowError, AttributeError, IndexError)


@dataclass(frozen=True)
class Report:
    """The report of a node in a beat; see `BeatRequest`. Its numbers are rounded to float32, as they travel. The
    node's address is not in it, because reports become public.

    sketch_hash: SHA-256 of the sketch's bytes; empty without one. sketch_iteration: which begins with the parameters of
    the sketch; 0 without one.
    """

    topology: int
    iteration: int
    head: bytes
    samples: int = 0
    loss: float = 0.0
    compute_ms: int = 0
    trained_through: int | None = None
    sketch_hash: bytes = b""
    sketch_iteration: int = 0
    missed: tuple[int, ...] = ()
    step_norm: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "step_norm"):
            object.__setattr__(self, name, _float32(getattr(self, name)))

    def canonical(self) -> bytes:
        """The bytes that the node signs."""
        return bytes(msgpack.packb(self.plain(), use_bin_type=True))

    def plain(self) -> list[Any]:
        return [list(value) if isinstance(value, tuple) else value for value in astuple(self)]

    def problem(self) -> str:
        """The fault of the fields by themselves; empty if there is none."""
        if len(self.head) != HASH_BYTES:
            return f"its head must have {HASH_BYTES} bytes"
        if len(self.sketch_hash) not in (0, HASH_BYTES):
            return "its sketch's hash has the wrong length"
        if len(self.missed) > MISSED_MAX:
            return f"it names more than {MISSED_MAX} missed peers"
        if bool(self.sketch_hash) != (self.sketch_iteration > 0) or not 0 <= self.sketch_iteration <= self.iteration:
            return "its sketch is of no iteration that the node has come to"
        if not (math.isfinite(self.step_norm) and self.step_norm >= 0):
            return "its step's norm must be finite, and not negative"
        return ""


FIELDS = tuple(field.name for field in fields(Report))


@dataclass(frozen=True)
class SignedReport:
    """A report, with what its signature covers beside it. session: 32 bytes. number: of the reports of the session."""

    node: str
    session: bytes
    number: int
    report: Report
    signature: bytes

    @property
    def statement(self) -> bytes:
        """The bytes that the node signs."""
        return statements.beat(self.session, self.number, self.report.canonical())

    @property
    def hash(self) -> bytes:
        """Names the report in a row, 32 bytes."""
        return hashlib.sha256(_NAME + self.node.encode() + self.statement).digest()


def sketch_hash(sketch: bytes) -> bytes:
    """The hash of a sketch's bytes; empty for no sketch. Raises PayloadError unless they are a finite number for each
    bucket."""
    if not sketch:
        return b""
    if len(sketch) != SKETCH_BYTES:
        raise PayloadError(f"a sketch has {SKETCH_BYTES} bytes; this has {len(sketch)}")
    if not np.isfinite(np.frombuffer(sketch, SKETCH_NUMBER)).all():
        raise PayloadError("a sketch has numbers that are not finite")
    return hashlib.sha256(sketch).digest()


def encode_reports(reports: list[SignedReport]) -> bytes:
    """The body of a beat's row. Raises PayloadError if there are too many reports."""
    if len(reports) > REPORTS_MAX:
        raise PayloadError(f"a row has at most {REPORTS_MAX} reports; there are {len(reports)}")
    entries = [[r.node, r.session, r.number, r.report.plain(), r.signature] for r in reports]
    return bytes(msgpack.packb([BODY_VERSION, entries], use_bin_type=True))


def decode_reports(data: bytes) -> list[SignedReport]:
    """Read the body of a beat's row. Raises PayloadError."""
    if len(data) > BODY_BYTES_MAX:
        raise PayloadError(f"a beat has at most {BODY_BYTES_MAX} bytes; this has {len(data)}")
    try:
        version, entries = msgpack.unpackb(data, raw=False)
        if version != BODY_VERSION:
            raise ValueError(f"it has version {version}; this thinwire reads version {BODY_VERSION}")
        found = [_signed(*entry) for entry in entries]
    except (*_NOT_A_BEAT, msgpack.UnpackException) as error:
        raise PayloadError(f"this is not a beat: {error or type(error).__name__}") from None
    if encode_reports(found) != data:
        raise PayloadError("this beat is not in canonical form, so its hash would differ")
    return found


def _signed(node: str, session: bytes, number: int, plain: list[Any], signature: bytes) -> SignedReport:
    report = Report(**dict(zip(FIELDS, plain, strict=True)) | {"missed": tuple(plain[FIELDS.index("missed")])})
    if problem := report.problem():
        raise ValueError(problem)
    kinds = (str, bytes, int, bytes)
    if any(type(value) is not kind for value, kind in zip((node, session, number, signature), kinds, strict=True)):
        raise ValueError("a node, session, number or signature is of another kind")
    if len(session) != HASH_BYTES or len(signature) != SIGNATURE_BYTES or number < 1:
        raise ValueError("a session, number or signature is out of bounds")
    return SignedReport(node, session, number, report, signature)


def _float32(value: float) -> float:
    """The nearest float32; one beyond its range becomes infinite, as on the wire."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


EDGES_MAX = 64
"""Edges in a report. A node of a larger complete topology names those with the smallest member numbers."""
Line = Literal["direct", "relay", "away"]


@dataclass(frozen=True)
class SeenEdge:
    """member: number of the peer. iteration: of its newest message; None before the first."""

    member: int
    line: Line
    iteration: int | None = None


@dataclass(frozen=True)
class SeenLines:
    """direct_sent, direct_received: payload bytes of direct lines since the node's process started."""

    direct_sent: int = 0
    direct_received: int = 0
    edges: tuple[SeenEdge, ...] = ()
