"""The owner's orders to a node: a pause, or to stop. They are in a file, so that a pause outlives a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from thinwire_common.files import replace_synced
from thinwire_proto.errors import ConfigError

ORDERS_FILE = "orders.json"
UNTIL_S_MAX = 1 << 36
"""Seconds since the epoch, in the year 4147. Later ones may have no date."""


@dataclass(frozen=True)
class Orders:
    """paused: whether the node is to rest, up to `until`, in seconds since the epoch; None: until the order is taken
    back. stop: at once, or when the contribution at hand has its receipt; for the running process alone."""

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
                replace_synced(self.path, ORDERS.dump_json(orders))
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None

    def forget_stop(self) -> None:
        """An order to stop was for an earlier process. Raises ConfigError."""
        if (orders := self.read()).stop:
            self.write(replace(orders, stop=""))
