"""Can this link catch up? A node that gets updates more slowly than the swarm seals them would follow for ever and
never arrive; it had better say so, and stop. Pure: times come in."""

from __future__ import annotations

from thinwire_proto.limits import KEEPING_UP_S

UPDATES_LEAST = 3


class KeepingUp:
    """Watches a replica that is behind, window by window: each at least KEEPING_UP_S long, with three updates or
    more."""

    def __init__(self, step: int, head_step: int, now: float) -> None:
        self._begin(step, head_step, now)

    def _begin(self, step: int, head_step: int, now: float) -> None:
        self._step, self._head_step, self._now = step, head_step, now
        self._fetch_s = self._replay_s = 0.0
        self._bytes = 0

    def applied(self, size: int, fetch_s: float, replay_s: float, step: int, head_step: int, now: float) -> str | None:
        """One more update, which brought the replica to `step`; `head_step` were sealed when it was sent. Returns in
        words that the link cannot keep up, if that is so."""
        self._fetch_s += fetch_s
        self._replay_s += replay_s
        self._bytes += size
        updates, sealed = step - self._step, head_step - self._head_step
        if now - self._now < KEEPING_UP_S or updates < UPDATES_LEAST:
            return None
        round_s = (now - self._now) / sealed if sealed > 0 else float("inf")
        fetch_s, replay_s = self._fetch_s / updates, self._replay_s / updates
        mean_bytes, kb_s = self._bytes / updates, self._bytes / max(self._fetch_s, 1e-9) / 1000
        words = (
            f"this machine cannot catch up: an update takes {fetch_s:.2f} s to fetch ({mean_bytes:,.0f} bytes, "
            f"{kb_s:,.1f} kB/s) and {replay_s:.2f} s to replay, and the swarm seals one every {round_s:.2f} s; "
            f"it is {head_step - step} updates behind. "
            f"It takes a faster {'link' if fetch_s > replay_s else 'machine'}"
        )
        self._begin(step, head_step, now)
        return words if sealed > updates else None
