"""The settings in access.sqlite, and what the organizer has decided about the run: its pause and its amendments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from thinwire_coordinator.hall.access.database import Table
from thinwire_proto.clean_text import clean_text

ADDRESS = "address"
"""HOST:PORT in invites."""
PUBLIC_TLS = "public_tls"
"""Not empty if the certificate there is the organizer's own, or that of a proxy in front."""
PAUSE = "pause"
NAMES_DAY_AFTER_HOURS = 20
"""A pause that ends later than this names the day of its end too."""


@dataclass(frozen=True)
class Pause:
    """since, until: Unix time in seconds. until None: until the organizer resumes the run. because: why, in words."""

    since: float
    until: float | None = None
    because: str = ""

    def holds(self, now: float) -> bool:
        """Whether the run is still paused."""
        return self.until is None or now < self.until

    def left_s(self, now: float) -> float | None:
        """The time until the run goes on; None if nobody has said when."""
        return None if self.until is None else max(0.0, self.until - now)

    @property
    def text(self) -> str:
        """The pause in words, with the time zone of this machine."""
        words = "paused by the organizer"
        if self.until is not None:
            form = "%a %d %b, %H:%M %Z" if self.until - self.since > NAMES_DAY_AFTER_HOURS * 3600 else "%H:%M %Z"
            words += f" until {datetime.fromtimestamp(self.until).astimezone().strftime(form)}"
        return f"{words}: {self.because}" if self.because else words


class SettingsTable(Table):
    def transaction(self) -> AbstractContextManager[None]:
        """A block in which nobody else writes."""
        return self._db.transaction()

    def get(self, key: str) -> str | None:
        for (value,) in self._db.execute("SELECT value FROM settings WHERE key = ?", key):
            return str(value)
        return None

    def put(self, key: str, value: str) -> None:
        if self.get(key) != value:
            self._db.write("INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", key, value)


class Pauses:
    """The pause of a state directory."""

    def __init__(self, settings: SettingsTable) -> None:
        self._settings = settings

    def at(self, now: float) -> Pause | None:
        """The pause that holds at a Unix time, in seconds."""
        kept = self._settings.get(PAUSE)
        pause = Pause(**json.loads(kept)) if kept else None
        if pause is not None:
            pause = replace(pause, because=clean_text(pause.because))  # one from before may hold what is no UTF-8
        return pause if pause is not None and pause.holds(now) else None

    def begin(self, pause: Pause) -> None:
        """Pause the run. An earlier pause is replaced."""
        self._settings.put(PAUSE, json.dumps(asdict(pause)))

    def end(self) -> None:
        """Let the run go on."""
        self._settings.put(PAUSE, "")


AMENDMENTS, REFUSED, PLANNED = "amendments", "amendments refused", "amendments planned"
"""The command writes the first, and the coordinator the second, so that neither undoes what the other has written. The
third are the ids of those that the run began with."""


@dataclass(frozen=True)
class Order:
    """An amendment that waits. changes: new values by dotted key. at: the first step that it may begin with; None: the
    next one. refused: why the run cannot have it, in words."""

    id: str
    changes: Mapping[str, Any]
    because: str = ""
    at: int | None = None
    refused: str = ""


class AmendmentOrders:
    def __init__(self, settings: SettingsTable) -> None:
        self._settings = settings

    def all(self) -> list[Order]:
        refused: dict[str, str] = json.loads(self._settings.get(REFUSED) or "{}")
        orders = [Order(**found) for found in json.loads(self._settings.get(AMENDMENTS) or "[]")]
        return [replace(order, refused=refused.get(order.id, "")) for order in orders]

    def waiting(self) -> list[Order]:
        """The orders that are not refused. Some may be in the ledger by now."""
        return [order for order in self.all() if not order.refused]

    def plan(self, orders: Sequence[Order]) -> None:
        """Order what the run file of a new run has, in place of what a creation that failed has left."""
        with self._settings.transaction():
            self._settings.put(AMENDMENTS, json.dumps([asdict(one) for one in orders]))
            self._settings.put(PLANNED, json.dumps([one.id for one in orders]))

    def planned(self) -> list[str]:
        """The ids of the orders that the run began with."""
        found: list[str] = json.loads(self._settings.get(PLANNED) or "[]")
        return found

    def add(self, order: Order, sealed: Sequence[str]) -> None:
        """Add an order. sealed: ids of orders that are in the ledger, and need not be kept."""
        with self._settings.transaction():  # two commands may be at it
            kept = [one for one in self.all() if one.id not in sealed and not one.refused] + [order]
            self._settings.put(AMENDMENTS, json.dumps([asdict(one) for one in kept]))

    def withdraw(self, sealed: Sequence[str]) -> list[Order]:
        """Remove all orders that wait, and return them. sealed: as for `add`; a coordinator may have just begun one."""
        with self._settings.transaction():
            waiting = [one for one in self.waiting() if one.id not in sealed]
            self._settings.put(AMENDMENTS, json.dumps([asdict(one) for one in self.all() if one.refused]))
        return waiting

    def refuse(self, why: Mapping[str, str]) -> None:
        if why:
            known = {order.id: order.refused for order in self.all() if order.refused}
            self._settings.put(REFUSED, json.dumps(known | dict(why)))
