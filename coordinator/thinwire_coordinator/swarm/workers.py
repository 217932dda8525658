"""The threads on which everything long runs, so that the event loop only ever passes things on."""

from __future__ import annotations

from thinwire_common.workers import Worker


class Workers:
    """replica: where the parameters live. disk: what is written, and the ledger. reading: what followers fetch, so that
    they cannot hold up a seal. merge: payloads. evaluation: held-out loss."""

    def __init__(self) -> None:
        self.replica = Worker("replica")
        self.disk = Worker("disk")
        self.reading = Worker("reading")
        self.merge = Worker("merge")
        self.evaluation = Worker("evaluation")

    def close(self) -> None:
        for worker in (self.reading, self.replica, self.merge, self.evaluation, self.disk):
            worker.close()
