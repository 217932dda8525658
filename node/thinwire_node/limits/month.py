"""Counts the bytes of a month, so that no death of the process lets a node pass its bound.

Bytes are reserved on disk before they pass, in portions, and for each open connection as many as its buffers and the
line may still hold when the process is killed. Such a process loses what it had reserved and not used; one that ends in
order writes what it has used."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from thinwire_common.files import replace_synced
from thinwire_proto.errors import ConfigError

log = logging.getLogger("thinwire.node")

MONTH_FILE = "month.json"
PORTION_SHARE = 1 / 200
PORTION_BYTES_MIN, PORTION_BYTES_MAX = 1 << 19, 16 << 20
"""Half of the smallest is more than what passes between two charges."""
MARGIN_BYTES = 1 << 18
"""Bytes that may pass after the last connection, such as those of a last piece and of the ends of connections."""


@dataclass(frozen=True)
class Month:
    """begins: its first day. reserved: bytes that have passed or may pass. reset_day: the day of the month on which it
    was to begin; 0 in files of earlier versions. left: the first day of the month in which the clock was before it was
    set back by more than a month."""

    begins: date = date.min
    reserved: Annotated[int, Field(ge=0)] = 0
    reset_day: int = 0
    left: date = date.min


MONTH = TypeAdapter(Month)


def _month_after(day: date) -> date:
    later = day.month % 12 + 1
    return day.replace(year=day.year + (later == 1), month=later)


class MonthlyBudget:
    """bound: bytes in a month; None: there is no bound, and nothing is counted. Raises ConfigError."""

    def __init__(self, path: Path, bound: int | None, reset_day: int, at_s: float) -> None:
        self._path = path
        self.bound = bound
        self.reset_day = reset_day
        self._month = self._read()
        self.used = self._month.reserved
        """Bytes of this month."""
        self._held = 0
        self._is_used = False
        self._begin_anew(at_s)

    def _read(self) -> Month:
        try:
            return MONTH.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return Month()
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}") from None
        except ValidationError:
            raise ConfigError(f"{self._path}: it is damaged; remove it to count this month's data from 0") from None

    def charge(self, count: int, at_s: float) -> None:
        """Count bytes that pass now, and reserve the next portion when half of the last one is used. Raises ConfigError
        if it cannot be reserved."""
        if self.bound is None:
            return
        try:
            self._begin_anew(at_s)
        finally:  # they have passed, even if the disk is full
            self.used += count
        self._reserve()

    def hold(self, count: int, at_s: float) -> None:
        """Reserve what a connection may pass after the process is killed, until `release`. Raises ConfigError; the
        bytes are to be released even then."""
        self._held += count
        if self.bound is not None:
            self._begin_anew(at_s)
            self._reserve()

    def release(self, count: int) -> None:
        """A connection has ended, and all its bytes are charged."""
        self._held -= count

    def _reserve(self) -> None:
        assert self.bound is not None
        needed = self.used + self._held
        portion = max(PORTION_BYTES_MIN, min(PORTION_BYTES_MAX, int(self.bound * PORTION_SHARE)))
        if needed + portion // 2 > self._month.reserved:
            self._write(replace(self._month, reserved=min(needed + portion, max(self.bound, needed))))

    def is_used(self, at_s: float) -> bool:
        """Whether nothing more may pass this month. It stays so when the connections have ended, and with them what
        they held: otherwise they would be opened and closed again and again."""
        if self.bound is None:
            return False
        self._begin_anew(at_s)
        self._is_used |= self.used + self._held + MARGIN_BYTES >= self.bound
        return self._is_used

    def ends_s(self, at_s: float) -> float:
        """The time at which the next month begins, in seconds since the epoch."""
        ends = _month_after(self._begins(at_s))
        while ends <= self._month.begins:  # the clock was set back
            ends = _month_after(ends)
        return datetime.combine(ends, datetime.min.time()).timestamp()

    def bind(self, bound: int | None, reset_day: int) -> None:
        """Hold another bound from now on. Without one, give back what is reserved and not used."""
        if bound is None:
            with suppress(ConfigError):  # the disk is full: these bytes stay counted
                self.close()
        self.bound, self.reset_day, self._is_used = bound, reset_day, False

    def close(self) -> None:
        """Give back what is reserved and not used."""
        if self.bound is not None and self.used < self._month.reserved:
            self._write(replace(self._month, reserved=self.used))

    def _begins(self, at_s: float, reset_day: int | None = None) -> date:
        now = datetime.fromtimestamp(at_s)
        begin = now.replace(day=reset_day or self.reset_day, hour=0, minute=0, second=0, microsecond=0)
        if begin > now:
            earlier = (begin.month - 2) % 12 + 1
            begin = begin.replace(year=begin.year - (earlier == 12), month=earlier)
        return begin.date()

    def _begin_anew(self, at_s: float) -> None:
        """A later month begins at 0. A clock that is set back begins none, nor does another day of reset.

        A clock that is set back by more than a month was wrong before, or is so now, as that of a machine without a
        battery is until it has asked the network. The bytes count in the month that it shows, and if it returns, in
        the one that it had left."""
        if self.bound is None:
            return
        begins, month = self._begins(at_s), self._month
        is_over = self._begins(at_s, month.reset_day) > month.begins
        if month.begins > _month_after(begins):
            self._write(replace(month, begins=begins, reset_day=self.reset_day, left=month.begins))
        elif is_over and begins == month.left:
            self._write(replace(month, begins=begins, reset_day=self.reset_day, left=date.min))
        elif not is_over and month.reset_day != self.reset_day:
            self._write(replace(month, begins=max(begins, month.begins), reset_day=self.reset_day))
        elif is_over:
            self._month = Month(begins, 0, self.reset_day)
            self.used, self._is_used = 0, False
            self._reserve()

    def _write(self, month: Month) -> None:
        try:
            replace_synced(self._path, MONTH.dump_json(month))
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}, so this month's data cannot be counted") from None
        self._month = month
