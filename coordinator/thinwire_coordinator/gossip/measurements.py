"""The disagreement that a row of a beat seals, and the body with the sketches that it was computed from.

All sketches are of one iteration. Each node has signed the hash of its own in a report of this row or an earlier one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import SKETCH_BYTES, disagreement, unpack_sketch
from thinwire_proto.gossip.reports import Report
from thinwire_proto.wire.rows import Row

CONSENSUS = "consensus"
"""The optional field of a row that has the figures of a measurement."""
BODY_VERSION = 1
NODES_MAX = 1024
"""Nodes whose sketches are compared; with more, these are a sample."""
BODY_BYTES_MAX = NODES_MAX * (SKETCH_BYTES + 128)
SAME = 1e-9
"""Relative: sums of float64 may be rounded otherwise on another machine."""


@dataclass(frozen=True)
class NodeSketch:
    """step_norm: of the node's step right before."""

    node: str
    sketch: bytes
    step_norm: float


@dataclass(frozen=True)
class Measurement:
    """distance: root mean square of the nodes from their mean. error: relative. in_steps: the distance over the root
    mean square of their steps; None if there were none. sketches: of at least two nodes."""

    iteration: int
    distance: float
    error: float
    in_steps: float | None
    sketches: tuple[NodeSketch, ...]

    @property
    def body(self) -> bytes:
        """The sketches, by which anybody can repeat the measurement."""
        entries = [[one.node, one.sketch] for one in self.sketches]
        return bytes(msgpack.packb([BODY_VERSION, entries], use_bin_type=True))

    def plain(self, body_hash: bytes, body_bytes: int) -> dict[str, Any]:
        """The optional field of the row."""
        return {
            "iteration": self.iteration,
            "nodes": len(self.sketches),
            "distance": self.distance,
            "in_steps": self.in_steps,
            "sketches": body_hash,
            "bytes": body_bytes,
        }


def measure(iteration: int, sketches: Sequence[NodeSketch]) -> Measurement:
    """Compare the sketches of an iteration, at least one."""
    found = disagreement([unpack_sketch(one.sketch) for one in sketches])
    step = math.sqrt(math.fsum(one.step_norm**2 for one in sketches) / len(sketches))
    in_steps = found.in_steps(step) if step > 0 else None
    return Measurement(iteration, found.distance, found.error, in_steps, tuple(sketches))


def sketches_named_by(row: Row) -> str:
    """The name of the body with the sketches of a row's measurement; empty for a row without one."""
    plain = row.extras.get(CONSENSUS)
    named = plain.get("sketches") if isinstance(plain, Mapping) else None
    return named.hex() if isinstance(named, bytes) else ""


class SketchCheck:
    """Checks the measurements of one row after another against the reports, which name each sketch by its hash."""

    def __init__(self) -> None:
        self._reported: dict[str, Report] = {}
        self.repeated = self.without_body = 0

    def report(self, node: str, report: Report) -> None:
        if report.sketch_hash:
            self._reported[node] = report

    def check(self, plain: Any, body: bytes | None) -> None:
        """plain: the row's optional field. body: None if it is not kept. Raises PayloadError."""
        if not isinstance(plain, Mapping):
            raise PayloadError("its disagreement is no map of figures")
        if body is None:
            self.without_body += 1
            return
        found = measure(int(plain["iteration"]), [self._sketch(*entry, plain) for entry in _decode(body)])
        sealed = (plain["distance"], plain["in_steps"], plain["nodes"])
        repeated = (found.distance, found.in_steps, len(found.sketches))
        if not all(map(_same, sealed, repeated)):
            raise PayloadError(
                f"the sealed distance, distance in steps and number of nodes are {sealed}; the sketches give {repeated}"
            )
        self.repeated += 1

    def _sketch(self, node: str, sketch: bytes, plain: Mapping[str, Any]) -> NodeSketch:
        report = self._reported.get(node)
        if report is None or (report.sketch_iteration, report.sketch_hash) != (
            plain["iteration"],
            hashlib.sha256(sketch).digest(),
        ):
            raise PayloadError(f"node {node}: no report names this sketch of iteration {plain['iteration']}")
        return NodeSketch(node, sketch, report.step_norm)


def _decode(body: bytes) -> list[tuple[str, bytes]]:
    """The nodes and sketches of a body. Raises PayloadError."""
    try:
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"it has more than {BODY_BYTES_MAX} bytes")
        version, entries = msgpack.unpackb(body, raw=False)
        if version != BODY_VERSION or not entries:
            raise ValueError(f"it has version {version}, and {len(entries)} sketches")
        found = [(node, sketch) for node, sketch in entries]
        if any((type(node), type(sketch), len(sketch)) != (str, bytes, SKETCH_BYTES) for node, sketch in found):
            raise ValueError("a node or a sketch is of another kind or size")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PayloadError(f"these are no sketches: {error}") from None
    return found


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=SAME)
