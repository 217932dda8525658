"""The amendments that the organizer has ordered and the ledger does not have yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from thinwire_coordinator.hall.access.pauses import Settings

KEY, REFUSED = "amendments", "amendments refused"
"""The command writes the first, and the coordinator the second, so that neither undoes what the other has written."""


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
    """The orders of a state directory, in their order."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def all(self) -> list[Order]:
        refused: dict[str, str] = json.loads(self._settings.get(REFUSED) or "{}")
        orders = [Order(**found) for found in json.loads(self._settings.get(KEY) or "[]")]
        return [replace(order, refused=refused.get(order.id, "")) for order in orders]

    def waiting(self) -> list[Order]:
        """The orders that are not refused. Some may be in the ledger by now."""
        return [order for order in self.all() if not order.refused]

    def add(self, order: Order, sealed: Sequence[str]) -> None:
        """Add an order. sealed: ids of orders that are in the ledger, and need not be kept."""
        kept = [one for one in self.all() if one.id not in sealed and not one.refused] + [order]
        self._settings.put(KEY, json.dumps([asdict(one) for one in kept]))

    def withdraw(self, sealed: Sequence[str]) -> list[Order]:
        """Remove all orders that wait, and return them. sealed: as for `add`; a coordinator may have just begun one."""
        waiting = [one for one in self.waiting() if one.id not in sealed]
        self._settings.put(KEY, json.dumps([asdict(one) for one in self.all() if one.refused]))
        return waiting

    def refuse(self, why: Mapping[str, str]) -> None:
        """Note why orders were refused, by their ids."""
        if why:
            known = {order.id: order.refused for order in self.all() if order.refused}
            self._settings.put(REFUSED, json.dumps(known | dict(why)))
