"""Detects a node that is too slow to catch up.

A node that fetches and applies updates more slowly than the swarm seals them never catches up. It should say so and
stop. One window is no proof: a line that is silent for some seconds makes any window bad. So the node stops after
several bad windows in a row. Pure: the caller passes times in."""

from __future__ import annotations

from thinwire_proto.limits import KEEPING_UP_S

UPDATES_LEAST = 3
BAD_WINDOWS = 2
"""Windows in a row in which the swarm sealed faster than the node applied. After so many the node cannot catch up."""


class KeepingUp:
    """Measures whether a replica catches up, in windows of at least KEEPING_UP_S and UPDATES_LEAST updates."""

    def __init__(self, step: int, head_step: int, now: float) -> None:
        self._bad = 0  # windows in a row, up to this one
        self._begin(step, head_step, now)

    def _begin(self, step: int, head_step: int, now: float) -> None:
        self._step, self._head_step, self._now = step, head_step, now
        self._fetch_s = self._replay_s = self._saved_s = 0.0
        self._bytes = 0

    def applied(
        self, size: int, fetch_s: float, replay_s: float, saved_s: float, step: int, head_step: int, now: float
    ) -> str | None:
        """Record an update that brought the replica to `step`, sent when `head_step` steps were sealed. Returns an
        error message if the node cannot catch up, else None.

        saved_s: time that the node spent saving its state after this update. It counts neither as replay nor for the
        length of the window, because saves are rare."""
        self._fetch_s += fetch_s
        self._replay_s += replay_s
        self._saved_s += saved_s
        self._bytes += size
        updates, sealed = step - self._step, head_step - self._head_step
        window_s = now - self._now
        worked_s = window_s - self._saved_s
        if worked_s < KEEPING_UP_S or updates < UPDATES_LEAST:
            return None
        round_s = window_s / sealed if sealed > 0 else float("inf")
        fetch_s, replay_s = self._fetch_s / updates, self._replay_s / updates
        mean_bytes, kb_s = self._bytes / updates, self._bytes / max(self._fetch_s, 1e-9) / 1000
        words = (
            f"this machine cannot catch up: an update takes {fetch_s:.2f} s to fetch ({mean_bytes:,.0f} bytes, "
            f"{kb_s:,.1f} kB/s) and {replay_s:.2f} s to replay, and the swarm seals one every {round_s:.2f} s; "
            f"the node is {head_step - step} updates behind. "
            f"It needs a faster {'link' if fetch_s > replay_s else 'machine'}"
        )
        self._begin(step, head_step, now)
        self._bad = self._bad + 1 if sealed * worked_s > updates * window_s else 0
        return words if self._bad >= BAD_WINDOWS else None
