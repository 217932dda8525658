"""Merges sign votes under an aggregation rule that looks at both sides of a component (`quorum`, `trimmed`)."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import AggregationSpec
from thinwire_proto.exact.aggregation import RULES
from thinwire_proto.exact.votes import Merger, Selection, Votes


class TwoSidedMerger(Merger):
    """Adds up the votes for + and for − as they arrive; uses four bytes of memory a component."""

    def __init__(self, components: int, spec: AggregationSpec, selection: Selection | None = None) -> None:
        super().__init__(components, selection)  # its sum holds the votes for +
        self._negative = np.zeros(components, np.int16)
        self._rule = partial(RULES[spec.kind], spec)

    def _add(self, votes: Votes, weight: int) -> None:
        votes.add_sides_to(self._sum, self._negative, weight)

    def values(self, part: slice) -> npt.NDArray[np.int16]:
        return self._rule(self._sum[part], self._negative[part], self._weight)
