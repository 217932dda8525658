"""Reads the beats of earlier terms from the ledger, for the page of a gossip run."""

from __future__ import annotations

import statistics

from thinwire_coordinator.gossip.ledger_rows import BEAT, KIND
from thinwire_coordinator.gossip.sealed_beat import loss_of, progress_of
from thinwire_coordinator.hall.ledger.bodies import Bodies
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.series import Bucket, add_loss
from thinwire_proto.errors import LedgerError, PayloadError
from thinwire_proto.gossip.reports import decode_reports


class PastBeats:
    """Makes a bucket for each row, in their order. Its step is the median of the nodes' newest iterations. A row whose
    body is not kept has no losses, and the step of the row before."""

    def __init__(self, ledger: Ledger, bodies: Bodies) -> None:
        self._ledger = ledger
        self._bodies = bodies
        self._iterations: dict[str, int] = {}
        self._step = 0

    def read(self, number: int, body_bytes: int, tokens: int, counted: list[tuple[str, int]]) -> Bucket:
        """counted: nodes with their samples. Raises LedgerError."""
        row, bucket = self._ledger.row(number), Bucket(self._step, tokens=tokens, nodes=len({*dict(counted)}))
        if row.extras.get(KIND) != BEAT:
            return bucket
        try:
            reports = decode_reports(self._bodies.get(row.body_hash, row.body_bytes))
        except (LedgerError, OSError, PayloadError):
            return bucket
        samples = [count for _, count in counted]
        if len(samples) != len(reports):
            return bucket
        progress = progress_of(reports, samples)
        self._iterations |= {node: one.iteration for node, one in progress.items()}
        self._step = bucket.step = max(self._step, statistics.median_low(self._iterations.values()))
        add_loss(bucket, loss_of(reports, samples), [one.loss for one in progress.values() if one.loss is not None])
        return bucket
