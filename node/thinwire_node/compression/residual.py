"""What an update with update_topk has left out of a contribution that it counts: it goes back into the momentum.

A receipt says that a contribution is counted; only the update says what of it. So a contribution is awaited from its
cut until the update of its round's step is applied, and no longer: if that does not count it, none does. Receipt and
update may come in either order, and one update may be out for each step that a base can lie behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from thinwire_node.compression.momentum import Sent
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import dropped_by_update
from thinwire_proto.exact.votes import Merged, Signs


@dataclass(frozen=True)
class Pending:
    """A contribution that something is still to come of: its hash, what it took out of the momentum, and the step that
    its round was for."""

    hash: bytes
    sent: Sent
    step: int = 0


def left_out_of(sent: Sent, merged: Merged, layout: TileLayout, update_topk: int) -> Sent | None:
    """The part of `sent` that the update does not hold, for `Momentum.put_back`; None if it holds all of it."""
    missing = np.flatnonzero(dropped_by_update(sent.components.cpu().numpy(), merged, layout, update_topk))
    if not len(missing):
        return None
    places = torch.from_numpy(missing).to(sent.components.device)
    return Sent(sent.components[places], sent.values[places], sent.extraction)


class Awaited:
    """Contributions whose update is still to come. Empty where the contract has no update_topk."""

    def __init__(self, update_topk: int, kept: Collection[Pending] = ()) -> None:
        """kept: of an earlier life."""
        self._update_topk = update_topk
        self._by_hash = {one.hash: one for one in kept}
        self._newest_extraction = 0

    def extract(self, one: Pending) -> None:
        self._newest_extraction = one.sent.extraction
        if self._update_topk:
            self._by_hash[one.hash] = replace(one, sent=replace(one.sent, codes=None))

    def clear(self) -> None:
        self._by_hash.clear()

    def applied(
        self, step: int, counted: Collection[bytes], merged: Merged | Signs, layout: TileLayout
    ) -> Iterator[Sent]:
        """The update of `step` is applied, which counts these contributions: what it has left out of ours. Of those
        that a snapshot has led past, nobody can say it any more, and they count as they were sent."""
        votes = merged if isinstance(merged, Merged) else None  # with update_topk they are votes
        for one in list(self._by_hash.values()):
            if one.step <= step:
                del self._by_hash[one.hash]
                part = (
                    left_out_of(one.sent, votes, layout, self._update_topk) if votes and one.hash in counted else None
                )
                if part is not None:
                    yield part

    def kept(self) -> tuple[Pending, ...]:
        """For the disk. The next life counts its cuts from 0 on."""
        return tuple(
            replace(one, sent=replace(one.sent, extraction=one.sent.extraction - self._newest_extraction))
            for one in self._by_hash.values()
        )
