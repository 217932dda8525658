"""Holds the disagreement of the ranks below a target: they measure it by sketches, and agree on codec and `every`.

The ranks exchange sketches through the store by which they met: 8 KB a rank, once in `MEASURE_EVERY` iterations. Nobody
waits for them. A decision takes effect one period after its measurement. The first rank that comes there computes it
from the sketches that are there, and writes it; all others take what is written. So all ranks change codec and `every`
in the same iteration, and a rank that died only misses in the mean.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.gossip import consensus

HEAD = struct.Struct("<qd")
"""Before a sketch: the period, and the norm of the rank's step."""
SKETCH_SEED = 0
UNDECIDED = ""


class ConsensusControl:
    """store: torch's, by which the ranks met; None for a rank alone, which measures nothing. name: of the run, in the
    store.

    Raises ConfigError if codec and every are no level."""

    def __init__(self, target: float, codec: str, every: int, store: Any, name: str, rank: int, ranks: int) -> None:
        self._target = target
        self._store = store
        self._name = f"{name}.consensus"
        self._rank, self._ranks = rank, ranks
        self._decision = consensus.Decision(consensus.level_of(codec, every), 0, "nothing is measured yet")
        self._period = 0
        self._published = b""
        self._measured: dict[str, float] = {}

    @property
    def level(self) -> consensus.Level:
        return consensus.LEVELS[self._decision.level]

    @property
    def reason(self) -> str:
        """Of the newest decision."""
        return self._decision.reason

    @property
    def is_unmet(self) -> bool:
        """Whether the ranks are above the target with the codec that sends the most."""
        return self._decision.is_unmet

    @staticmethod
    def measures(iteration: int) -> bool:
        """Whether `begin` needs the step of this iteration."""
        return iteration % consensus.MEASURE_EVERY == 0

    def begin(self, iteration: int, x: Tensor, step: float | None) -> None:
        """An iteration begins with these parameters, float32, flat. step: the norm of this rank's step, if it is known.

        Changes `level` in the first iteration of a period. If the store is gone, the level stays."""
        period = iteration // consensus.MEASURE_EVERY
        if self._store is None:
            return
        try:
            if period > self._period:
                self._take(period)
            if step is not None and self.measures(iteration):
                self._published = HEAD.pack(period, step) + consensus.sketch_of(x, SKETCH_SEED).astype("<f8").tobytes()
                self._store.set(self._key(period, self._rank), self._published)
        except RuntimeError as error:  # torch's, when the host of the store has gone
            self._store = None
            reason = f"the ranks' store is gone, so codec and every stay: {error}"
            self._decision = consensus.Decision(self._decision.level, 0, reason)

    def stats(self) -> dict[str, Any]:
        """disagreement: of the parameters, at the last measurement; disagreement_error: relative, two standard errors;
        disagreement_in_steps: over the ranks' root mean square step. None before the first."""
        names = ("disagreement", "disagreement_in_steps")
        return {
            "codec": self.level.codec,
            "every": self.level.every,
            **{name: self._measured.get(name) for name in names},
            "disagreement_error": consensus.ERROR if self._measured else None,
            "consensus": self._decision.reason,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            **asdict(self._decision),
            "period": self._period,
            "published": torch.frombuffer(bytearray(self._published), dtype=torch.uint8) if self._published else None,
            "measured": dict(self._measured),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._decision = _decision_in(state)
        self._period = state["period"]
        self._published = b"" if state["published"] is None else state["published"].numpy().tobytes()
        self._measured = dict(state["measured"])
        if self._store is not None and self._published:
            self._store.set(self._key(HEAD.unpack_from(self._published)[0], self._rank), self._published)
        if self._store is not None and self._period:  # for ranks whose states are of the period before
            self._store.set(self._decision_key(self._period), json.dumps(self._decided(self._decision)).encode())

    def _take(self, period: int) -> None:
        """Take the decision of this period, or make it."""
        assert self._store is not None, "a rank alone measures nothing"
        key = self._decision_key(period)
        decided = self._store.get(key) if self._store.check([key]) else b""
        if not decided:
            decided = self._store.compare_set(key, UNDECIDED, json.dumps(self._decide(period)))
            self._store.delete_key(self._decision_key(period - 2))
        found = json.loads(decided)
        self._decision = _decision_in(found)
        self._measured = found["measured"]
        self._period = period

    def _decide(self, period: int) -> dict[str, Any]:
        sketches, squares = self._sketches(period - 1)
        decision, measured = self._decision, self._measured
        if len(sketches) > 1:
            apart = consensus.disagreement(sketches)
            step = math.sqrt(sum(squares) / len(squares))
            measured = {"disagreement": apart.distance, "disagreement_in_steps": apart.in_steps(step)}
            decision = consensus.decide(decision, measured["disagreement_in_steps"], self._target)
        return self._decided(decision, measured)

    def _decided(self, decision: consensus.Decision, measured: Mapping[str, float] | None = None) -> dict[str, Any]:
        """A decision as it is in the store. measured: what it follows from; by default the newest."""
        figures = dict(self._measured if measured is None else measured)
        return asdict(decision) | {"measured": figures}

    def _decision_key(self, period: int) -> str:
        return f"{self._name}.decision.{period}"

    def _sketches(self, period: int) -> tuple[list[consensus.Sketch], list[float]]:
        """The sketches of this period, and the squares of the steps, of the ranks that measured then."""
        assert self._store is not None, "a rank alone measures nothing"
        sketches, squares = [], []
        for rank in range(self._ranks):
            key = self._key(period, rank)
            data = self._store.get(key) if self._store.check([key]) else b""
            if len(data) == HEAD.size + 8 * consensus.BUCKETS and HEAD.unpack_from(data)[0] == period:
                sketches.append(np.frombuffer(data, "<f8", offset=HEAD.size))
                squares.append(HEAD.unpack_from(data)[1] ** 2)
        return sketches, squares

    def _key(self, period: int, rank: int) -> str:
        """Two for each rank: a sketch is overwritten when its decision is two periods old."""
        return f"{self._name}.sketch.{period % 2}.{rank}"


def _decision_in(state: Mapping[str, Any]) -> consensus.Decision:
    return consensus.Decision(**{one.name: state[one.name] for one in fields(consensus.Decision)})
