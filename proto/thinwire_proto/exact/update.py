"""One sealed step: the merged votes and the two numbers that turn them into a change of the parameters."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.exact.votes import Merged, Signs


@dataclass(frozen=True)
class Update:
    """The update that leads from θ_step to θ_{step+1}: θ ← θ·decay, then θ ← θ − learning_rate·sign(X). With
    magnitudes, θ ← θ − S·X in place of that, S the tile's scale; the learning rate then only says what the nodes had.
    """

    step: int
    learning_rate: float  # a float32
    decay: float  # a float32
    merged: Merged | Signs
