"""The amendments that a run file has: its tables `[[amend]]`. Does not need torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from thinwire_coordinator.hall.access.settings import Order
from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.amendment import AMENDMENTS_MAX, POSITION_MAX, REASON_LENGTH_MAX, Amendment
from thinwire_proto.contract.data.tokens import HELD_OUT
from thinwire_proto.contract.sections import canonical_json
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.exact.amendments import amendable_keys, amended_run

AMEND = "amend"
"""The name of the tables."""
ID_LENGTH = 16


def planned(tables: Any) -> list[Order]:
    """The amendments of a file's tables. Raises PlannedError for the first that is none."""
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise PlannedError("must be a table [[amend]], with `at` and new values such as round.samples = 8")
    if len(tables) > AMENDMENTS_MAX:
        raise PlannedError(f"a run has at most {AMENDMENTS_MAX} amendments, and these are {len(tables)}")
    return [_order(table, number) for number, table in enumerate(tables)]


class PlannedError(ConfigError):
    """Why a run cannot have an amendment. number: of its table, from 0. key: within it, or empty."""

    def __init__(self, text: str, number: int = 0, key: str = "") -> None:
        super().__init__(text)
        self.number = number
        self.key = key


def _order(table: dict[str, Any], number: int) -> Order:
    at, because, changes = table.get("at"), table.get("because", ""), dict[str, Any]()
    if type(at) is not int or at < 1:
        raise PlannedError("must be the first step that it holds for, a whole number from 1 on", number, "at")
    if not isinstance(because, str) or len(because) > REASON_LENGTH_MAX:
        raise PlannedError(f"must be a text of at most {REASON_LENGTH_MAX} characters", number, "because")
    for section in table.keys() - {"at", "because"}:
        if section not in RunSpec.model_fields or not isinstance(table[section], dict):
            raise PlannedError("is no section; give keys with theirs, such as round.samples = 8", number, section)
        changes |= {f"{section}.{key}": value for key, value in table[section].items()}
    if not changes:
        raise PlannedError("gives no key a new value, such as round.samples = 8", number)
    if HELD_OUT in changes:
        raise PlannedError("a held-out set is added by `thinwire-coordinator amend --held-out`", number, HELD_OUT)
    try:
        written = canonical_json([at, because, changes])
    except (TypeError, ValueError):
        text = "values must be finite numbers, texts, true or false, or lists or tables of these"
        raise PlannedError(text, number) from None
    return Order(hashlib.sha256(written).hexdigest()[:ID_LENGTH], changes, because, at)


def runs_of(run: RunSpec, orders: Iterable[Order]) -> list[tuple[int, RunSpec]]:
    """The run as it is from step 0 on, and from each amendment on. Raises PlannedError for one that it cannot have."""
    found, orders = [(0, run)], list(orders)
    if orders and not run.exchange.ORDERS_AHEAD:
        raise PlannedError(
            f"a run whose exchange is {run.exchange.kind!r} cannot have amendments from its beginning on; "
            "`thinwire-coordinator amend` orders them while it runs"
        )
    for number, order in sorted(enumerate(orders), key=lambda one: one[1].at or 0):
        at, before = order.at or 0, found[-1][1]
        if at >= before.schedule.steps:
            raise PlannedError(f"the run ends at step {before.schedule.steps}, so nothing is left to change", number)
        try:
            after = amended_run(before, Amendment(at, order.changes, order.because, order.id, POSITION_MAX))
        except ContractError as error:
            keys = amendable_keys(run)
            known = "" if order.changes.keys() <= set(keys) else f"; these keys may change: {', '.join(keys)}"
            raise PlannedError(f"{error}{known}", number) from None
        if at == found[-1][0]:
            found.pop()
        found.append((at, after))
    return found
