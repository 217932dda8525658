"""Calls of strangers that were admitted and whose first message has not come yet. They give way to the next stranger.

Otherwise whoever opens calls and sends nothing would fill the room of those who want to join. An honest caller sends
its message with the call, so it is silent for less than a round trip.
"""

from __future__ import annotations

from thinwire_common.within import Within
from thinwire_coordinator.hall.access.admission import Caller


class Silence:
    """Of one call, until its first message."""

    def __init__(self, caller: Caller, calls: SilentCalls) -> None:
        self.caller = caller
        self.gave_way = False
        self._calls = calls
        self._waiting = Within(None)

    def within(self, seconds: float) -> Within:
        """The time limit for the next message of the call. It ends early if the call has to give way."""
        self._waiting = Within(0.0 if self.gave_way else seconds)
        return self._waiting

    def spoke(self) -> None:
        self._calls.spoke(self)

    def give_way(self) -> None:
        self.gave_way = True
        self._waiting.end()


class SilentCalls:
    """All silent calls of strangers, the oldest first."""

    def __init__(self) -> None:
        self._calls: dict[Silence, None] = {}

    def open(self, caller: Caller) -> Silence:
        silence = Silence(caller, self)
        if caller.node_id is None:
            self._calls[silence] = None
        return silence

    def spoke(self, silence: Silence) -> None:
        self._calls.pop(silence, None)

    def close(self, silence: Silence) -> bool:
        """The call has ended. Return whether it still had its place."""
        self._calls.pop(silence, None)
        return not silence.gave_way

    def give_way(self, network: str | None) -> Caller | None:
        """Take the place of the oldest call, of a network if one is given. Return whose it was; None without one."""
        found = next((one for one in self._calls if network in (None, one.caller.network)), None)
        if found is None:
            return None
        del self._calls[found]
        found.give_way()
        return found.caller
