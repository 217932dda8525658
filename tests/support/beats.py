"""Events of beats of a gossip run."""

from __future__ import annotations

from thinwire_coordinator.hall.events import BeatSealed, NodeProgress
from thinwire_coordinator.hall.measurement import weighted_median
from thinwire_proto.wire.rows import Counted

CONTEXT = 32
SAMPLES = 8


def beat(number: int, iterations: tuple[int, int, int], losses: dict[str, float], at: float = 0.0) -> BeatSealed:
    """A beat in which each node of `losses` reports one iteration of SAMPLES samples."""
    counted = tuple(Counted(node, b"", 1, SAMPLES) for node in losses)
    loss = weighted_median((loss, 1) for loss in losses.values())
    return BeatSealed(
        beat=number, at=at, counted=counted, tokens_a_sample=CONTEXT,
        progress={node: NodeProgress(iterations[1], loss) for node, loss in losses.items()},
        iterations=iterations, iterations_done=len(losses), members=len(losses), loss=loss, learning_rate=1e-3,
    )  # fmt: skip
