"""Remembers the contributions of earlier rounds, to find those that are sent again.

Only those that were merged: a node puts the others back into its momentum, so it rightly sends them again.

All votes of a contribution are remembered by one hash, which finds equal ones. A few votes are remembered too, the
SKETCH whose drawn numbers are smallest, which finds nearly equal ones: two sketches show which share of their votes the
contributions have in common (Broder, "On the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.star.trust.ballots import Ballot, Numbers, Secret
from thinwire_proto.exact.votes import CHUNK

SKETCH = 128
"""Votes of a contribution that are remembered: 1 KiB."""
OWN_KEPT = 16
"""Contributions of a node that are remembered by their sketch."""
KEPT = 256
"""Contributions of anybody that are remembered by their sketch."""
NODES_KEPT = 4096
DIGESTS_KEPT = 1 << 16
"""Contributions that are remembered by their hash."""
LOOKED_AT = 64
"""Contributions of a round that are compared with those of others; the next round goes on with the next ones."""
DIFFERING_MIN = 20
"""Votes in which a node must usually differ from others before a copy of it can be told. An honest node then differs in
a quarter of that or less with a probability below 1e-3 (Poisson)."""
COPY_DIFFERS = 0.25
"""A copy differs from its original in at most this share of the votes in which others usually differ."""
_NOTHING = np.uint64(2**64 - 1)


class EarlierVotes:
    """The contributions of earlier rounds."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._pool: deque[tuple[str, Numbers]] = deque(maxlen=KEPT)
        self._own: OrderedDict[str, deque[Numbers]] = OrderedDict()
        self._digests: OrderedDict[bytes, str] = OrderedDict()
        self._next = 0

    def sources(self, ballots: Sequence[Ballot]) -> list[str]:
        """The node that sent these votes in an earlier round, for each contribution; empty if nobody did. Remembers the
        contributions."""
        first, self._next = self._next, self._next + LOOKED_AT
        turn = {place % max(1, len(ballots)) for place in range(first, self._next)}
        pool = np.array([sketch for _, sketch in self._pool], np.uint64).reshape(-1, SKETCH)
        sketches = [self._sketch(ballot) for ballot in ballots]
        found = [
            self._source(ballot, sketches[place], pool, is_turn=place in turn) for place, ballot in enumerate(ballots)
        ]
        for ballot, sketch in zip(ballots, sketches, strict=True):
            self._remember(ballot, sketch)
        while len(self._own) > NODES_KEPT:
            self._own.popitem(last=False)
        while len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        return found

    def _source(self, ballot: Ballot, sketch: Numbers, pool: Numbers, *, is_turn: bool) -> str:
        if len(ballot) < DIFFERING_MIN:
            return ""
        if ballot.digest and (known := self._digests.get(ballot.digest)) is not None:
            return known
        among_all = _differing(sketch, pool if is_turn else pool[:LOOKED_AT])
        if not len(among_all):
            return ""
        usual = float(np.median(among_all))
        if usual * len(ballot) < DIFFERING_MIN:
            return ""
        own = _differing(sketch, np.array(self._own.get(ballot.node, ()), np.uint64).reshape(-1, SKETCH))
        if min(own, default=1.0) <= COPY_DIFFERS * usual:
            return ballot.node
        is_copy = is_turn and among_all.min() <= COPY_DIFFERS * usual
        return self._pool[int(among_all.argmin())][0] if is_copy else ""

    def _remember(self, ballot: Ballot, sketch: Numbers) -> None:
        if len(ballot) < DIFFERING_MIN or not ballot.merged:
            return
        self._pool.append((ballot.node, sketch))
        self._own.setdefault(ballot.node, deque(maxlen=OWN_KEPT)).append(sketch)
        self._own.move_to_end(ballot.node)
        if ballot.digest:
            self._digests.setdefault(ballot.digest, ballot.node)

    def _sketch(self, ballot: Ballot) -> Numbers:
        """The smallest drawn numbers of the votes, ascending; as many as SKETCH, the last ones perhaps 2⁶⁴ − 1."""
        keys = np.zeros(0, np.uint64)
        for start in range(0, len(ballot), CHUNK):
            part = slice(start, start + CHUNK)
            keys = np.append(keys, self._secret.drawn(2 * ballot.components[part] + ballot.positive[part]))
            if len(keys) > SKETCH:
                keys = np.partition(keys, SKETCH - 1)[:SKETCH]
        return np.concatenate([np.sort(keys), np.full(SKETCH - len(keys), _NOTHING)])


def _differing(sketch: Numbers, others: Numbers) -> npt.NDArray[np.float64]:
    """About which share of a contribution's votes each of the others, [n, SKETCH], does not have: [n]."""
    place = np.minimum(np.searchsorted(sketch, others), SKETCH - 1)
    shared = np.count_nonzero((sketch[place] == others) & (others != _NOTHING), axis=1)
    last = np.minimum(sketch[-1], others[:, -1])  # both have all their votes up to here
    nothing = np.where(last == _NOTHING, np.count_nonzero(sketch == _NOTHING), 0)
    mine = np.searchsorted(sketch, last, side="right") - nothing
    found: npt.NDArray[np.float64] = 1 - shared / np.maximum(mine, 1)
    return found
