"""The disagreement that a row of a beat seals, and the body with the sketches that it was computed from.

All sketches are of one iteration. Each node has signed the hash of its own in a report of this row or an earlier one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import msgpack
import numpy as np
from torch import Tensor

from thinwire_coordinator.gossip.participants import Participant
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import MEASURE_EVERY, SKETCH_BYTES, disagreement, sketch_of, unpack_sketch
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


NODES_LEAST = 2
FIT_FACTOR = 4.0
"""Times what is expected that a node has moved by since its last sketch."""


class Sketches:
    """The sketches of one iteration.

    The coordinator asks for the sketches of an iteration that no node has reached. It compares them once all members
    are past it, so all of them are of the same iteration, and none is waited for.

    At the end, the parameters of a node must fit the last sketch that it has signed: since then it has stepped, and
    mixed with nodes that are about as far away as before. How far nodes step, and are apart, is the median of what all
    say.

    steps: tells the iterations of the run, which an amendment may change.
    """

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps = steps
        self.measure_at = 0
        """The iteration that is asked for; 0 for none."""
        self._kept: dict[str, NodeSketch] = {}
        self._newest: dict[str, tuple[int, NodeSketch]] = {}  # by node, with its iteration; not kept over a restart

    def ask(self, ahead: int) -> None:
        """Ask for an iteration, if none is asked for. ahead: nobody is past it before all have heard of it."""
        furthest = min(-(-ahead // MEASURE_EVERY) * MEASURE_EVERY, self._steps())
        self.measure_at = self.measure_at or furthest

    def amend(self) -> None:
        """The run has another number of iterations, of which no node has done the last one."""
        self.measure_at = min(self.measure_at, self._steps())

    def put(self, node: str, iteration: int, sketch: bytes, step_norm: float) -> None:
        """Keep a node's sketch, if it was asked for."""
        if iteration and iteration == self.measure_at and (node in self._kept or len(self._kept) < NODES_MAX):
            self._kept[node] = NodeSketch(node, sketch, step_norm)
            self._newest.pop(node, None)
            self._newest[node] = iteration, self._kept[node]
            if len(self._newest) > NODES_MAX:
                del self._newest[next(iter(self._newest))]

    def drop(self, node: str) -> None:
        self._kept.pop(node, None)

    def measured(self, running: Sequence[Participant]) -> Measurement | None:
        """The measurement that is due, once; None if members have not come there yet, or sent no sketches.

        A member that has yet to begin is not waited for, and neither is one that did not hear in time."""
        waited = [one for one in running if one.enters_at is None]
        if not self.measure_at or not waited or any(one.iteration < self.measure_at for one in waited):
            return None
        iteration, self.measure_at = self.measure_at, 0
        kept, self._kept = [self._kept[node] for node in sorted(self._kept)], {}
        return measure(iteration, kept) if len(kept) >= NODES_LEAST else None

    def misfit(self, node: str, x: Tensor, rate: Callable[[int], float]) -> str:
        """Why the parameters of a node after the last iteration do not fit its last sketch; nothing if they do, or
        if there are too few sketches to tell. rate: the learning rate of an iteration."""
        if node not in self._newest:
            return ""
        iteration, own = self._newest[node]
        alike = [one for at, one in self._newest.values() if at == iteration]
        if len(alike) < NODES_LEAST:
            return ""
        sketches = np.stack([unpack_sketch(one.sketch) for one in alike])
        apart = median_low(np.linalg.norm(sketches - np.median(sketches, axis=0), axis=1).tolist())
        before = rate(max(0, iteration - 1))  # of the steps that the sketches came with
        grows = (
            max((rate(later) for later in range(iteration, self._steps())), default=before) / before if before else 1
        )
        steps = (self._steps() - iteration) * max(1.0, grows) * median_low([one.step_norm for one in alike])
        moved = float(np.linalg.norm(sketch_of(x, iteration) - unpack_sketch(own.sketch)))
        if moved <= FIT_FACTOR * (apart + steps):
            return ""
        return (
            f"they have moved by {moved:.3g} since the node's sketch of iteration {iteration}; with the steps of all "
            f"since, and as far as nodes are apart, {apart + steps:.3g} is expected, and {FIT_FACTOR:g} times as much "
            "is allowed"
        )
