"""Logs refusals at the door. Strangers can cause any number of them, so their lines are bounded in number."""

from __future__ import annotations

import logging
from collections.abc import Callable

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason

log = logging.getLogger("thinwire.coordinator")

LOG_EVERY_S = 10.0


class RefusalLog:
    """Logs the first refusal of each reason, and then one line for each reason every LOG_EVERY_S at most."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._silent_until: dict[DoorReason, float] = {}
        self._times: dict[DoorReason, int] = {}

    def note(self, node_id: str, denied: Denied) -> None:
        reason, now = denied.reason, self._now()
        self._times[reason] = times = self._times.get(reason, 0) + 1
        if now < self._silent_until.get(reason, now):
            return
        self._times[reason], self._silent_until[reason] = 0, now + LOG_EVERY_S
        more = f" ({times} refusals since the last line)" if times > 1 else ""
        text = f"refused the node {node_id}: {denied.reason.value}: {denied.text}{more}"
        tell(
            log,
            logging.WARNING,
            "coordinator.join_refused",
            text,
            node_id=node_id,
            refusal=reason.value,
            reason=denied.text,
            times=times,
        )
