"""One sealed step: the merged votes, and the two numbers that turn them into a change of the parameters."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.exact.votes import Levels, Merged


@dataclass(frozen=True)
class Update:
    """The update from θ_step to θ_{step+1}: θ ← θ·decay, then θ ← θ − learning_rate·sign(X).

    With magnitudes the second operation is θ ← θ − S·X, where S is the tile's scale. The learning rate is then only
    informative: it is the rate that the nodes used.
    """

    step: int
    learning_rate: float  # a float32
    decay: float  # a float32
    merged: Merged | Levels
