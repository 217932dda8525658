"""Decides whether a node works or rests: by its limits, the time, the machine, and the orders of its owner."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pydantic.dataclasses
from pydantic import Field, TypeAdapter, ValidationError

from thinwire_common.files import replace_synced
from thinwire_node.limits.limits import Limits
from thinwire_node.limits.quantities import in_words
from thinwire_proto.errors import ConfigError

ORDERS_FILE = "orders.json"
UNTIL_S_MAX = 1 << 36
"""Seconds since the epoch, in the year 4147. Later ones may have no date."""


@pydantic.dataclasses.dataclass(frozen=True)
class Orders:
    """The owner's orders, in a file, so that a pause outlives a restart. paused: whether the node is to rest, up to
    `until`, in seconds since the epoch; None: until the order is taken back. stop: at once, or when the contribution at
    hand has its receipt; for the running process alone."""

    paused: bool = False
    until: Annotated[float, Field(ge=0, le=UNTIL_S_MAX)] | None = None
    stop: Literal["", "now", "after-round"] = ""

    def is_paused(self, at_s: float) -> bool:
        """Whether the pause holds. at_s: the time of day, in seconds since the epoch."""
        return self.paused and (self.until is None or at_s < self.until)


ORDERS = TypeAdapter(Orders)


class OrdersFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Orders:
        """The orders; none without a file. Raises ConfigError."""
        try:
            return ORDERS.validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return Orders()
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        except ValidationError:
            raise ConfigError(f"{self.path}: it is damaged; `thinwire-node resume` replaces it") from None

    def write(self, orders: Orders) -> None:
        """Raises ConfigError."""
        try:
            if orders == Orders():
                self.path.unlink(missing_ok=True)
            else:
                replace_synced(self.path, ORDERS.dump_json(orders), of_folder=True)
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None

    def forget_stop(self) -> None:
        """An order to stop was for an earlier process. Raises ConfigError."""
        if (orders := self.read()).stop:
            self.write(replace(orders, stop=""))


BUSY_SHARE = 0.25
"""The share of the processor that others use. Above it the machine is busy, and below half of it free again."""


@dataclass(frozen=True)
class Surroundings:
    """The state of a node's machine. at_s: the time of day, in seconds since the epoch. others_share: of the
    processor, that other programs use; None: not known yet. month_ends_s: the time at which new monthly data begin, if
    those of this month are used; None: they are not. is_card_used: by another program than a node."""

    at_s: float
    on_battery: bool = False
    others_share: float | None = None
    month_ends_s: float | None = None
    is_somebody_here: bool = False
    is_screen_full: bool = False
    is_card_used: bool = False
    is_metered: bool = False


@dataclass(frozen=True)
class Rest:
    """words: until when the node rests, and why. until: seconds since the epoch, infinity if that is not known.
    is_busy: whether because others use the machine."""

    words: str
    until: float = math.inf
    is_busy: bool = False


def rest(limits: Limits, orders: Orders, around: Surroundings, was_busy: bool = False) -> Rest | None:
    """The rest that is due now; None: the node works. was_busy: whether it rests already because others are busy."""
    now = around.at_s
    if orders.is_paused(now):
        until = math.inf if orders.until is None else orders.until
        return Rest("paused" if until == math.inf else f"paused until {in_words(until, now)}", until)
    return _by_time(limits, around) or _by_machine(limits, around, was_busy)


def _by_time(limits: Limits, around: Surroundings) -> Rest | None:
    now = around.at_s
    if around.month_ends_s is not None and limits.monthly_data is not None:
        return Rest(f"resting until {in_words(around.month_ends_s, now)} (monthly data used)", around.month_ends_s)
    if limits.hours is not None and not limits.hours.contain(now):
        begin = limits.hours.begin_after(now)
        return Rest(f"resting until {in_words(begin, now)} (hours)", begin)
    return None


def _by_machine(limits: Limits, around: Surroundings, was_busy: bool) -> Rest | None:
    if limits.on_battery == "pause" and around.on_battery:
        return Rest("resting: on battery")
    if limits.on_metered == "pause" and around.is_metered:
        return Rest("resting: the line is metered")
    if limits.while_busy == "run":
        return None
    for is_so, words in (
        (around.is_somebody_here, "somebody is at this machine"),
        (around.is_screen_full, "a program fills the screen"),
        (around.is_card_used, "another program uses the card"),
    ):
        if is_so:
            return Rest(f"resting: {words}")
    share_max = BUSY_SHARE / 2 if was_busy else BUSY_SHARE
    if (around.others_share or 0.0) > share_max:
        return Rest("resting: other programs use the processor", is_busy=True)
    return None
