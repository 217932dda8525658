"""Returns to the momentum the components that an update with update_topk dropped from a counted contribution.

A receipt says that a contribution is counted; only the update says which of its components. So a contribution is
tracked from its extraction until the update of its round's step has been applied. If that update does not count it, no
later one will. Receipt and update may come in either order, and several contributions can be pending at once, one for
each step that a base may lie behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from thinwire.compression.sent import Sent
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import dropped_by_update
from thinwire_proto.exact.votes import Levels, Merged
from thinwire_proto.out_of_memory import retry_out_of_memory


@dataclass(frozen=True)
class Pending:
    """A contribution whose outcome is open: its hash, what it removed from the momentum, and the step of its round.

    samples: that it was trained on; 0 if an earlier process trained them."""

    hash: bytes
    sent: Sent
    step: int = 0
    samples: int = 0


def dropped_part(sent: Sent, merged: Merged, layout: TileLayout, update_topk: int) -> Sent | None:
    """The part of `sent` that is missing in the update, for `Momentum.put_back`; None if nothing is missing."""
    missing = np.flatnonzero(dropped_by_update(sent.components.cpu().numpy(), merged, layout, update_topk))
    if not len(missing):
        return None
    indices = torch.from_numpy(missing).to(sent.components.device)
    return Sent(sent.components[indices], sent.values[indices], sent.extraction)


class Awaited:
    """Contributions whose update is still to come. Always empty without `update_topk`, which may be amended."""

    def __init__(self, update_topk: int, kept: Collection[Pending] = ()) -> None:
        """kept: contributions restored from disk."""
        self.update_topk = update_topk
        self._by_hash = {one.hash: one for one in kept}
        self._newest_extraction = 0

    def add(self, one: Pending) -> None:
        self._newest_extraction = one.sent.extraction
        if self.update_topk:
            self._by_hash[one.hash] = replace(one, sent=replace(one.sent, codes=None))

    def clear(self) -> None:
        self._by_hash.clear()

    def applied(
        self, step: int, counted: Collection[bytes], merged: Merged | Levels, layout: TileLayout
    ) -> Iterator[Sent]:
        """Yield the dropped parts of our contributions, after the update of `step` was applied, which counts `counted`.

        If a snapshot skipped the update of a contribution, its dropped part is unknown, and the contribution counts as
        sent."""
        votes = merged if isinstance(merged, Merged) else None  # with update_topk an update contains votes
        for one in list(self._by_hash.values()):
            if one.step <= step:
                part = None
                if votes and one.hash in counted:
                    part = retry_out_of_memory(partial(dropped_part, one.sent, votes, layout, self.update_topk))
                del self._by_hash[one.hash]
                if part is not None:
                    yield part

    def kept(self) -> tuple[Pending, ...]:
        """The contributions to save to disk. After a restart, extractions are numbered from 0 again."""
        return tuple(
            replace(one, sent=replace(one.sent, extraction=one.sent.extraction - self._newest_extraction))
            for one in self._by_hash.values()
        )
