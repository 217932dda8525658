"""Reads the quantities of limits, and the hours of the week in which a node may work, and writes points in
time for people.

Hours are local. A window belongs to the day on which it begins, so `fri 22-07` ends on Saturday.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from thinwire_common.local_time import next_time
from thinwire_common.units import parse_seconds

RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg])?(bit|b)(?:/s|ps)?", re.IGNORECASE)
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
RATE_LEAST = 2000.0
"""Bytes per second. A slower line cannot carry the heartbeats and the TLS handshake in time."""
TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d\d)")


def read_rate(text: str) -> float:
    """Bytes per second of a rate such as 500kB/s, 10Mbit/s or 10Mbps: a small b is a bit. Raises ValueError."""
    found = RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a rate with its unit, such as 500kB/s or 10Mbit/s")
    rate = float(found[1]) * PREFIXES[(found[2] or "").lower()] / (1 if found[3] == "B" else 8)
    if rate < RATE_LEAST:
        raise ValueError(f"{text!r} is less than 2 kB/s, with which a node cannot take part")
    return rate


def read_until(words: list[str], at_s: float) -> float | None:
    """The end of a pause: of `1h`, or of `until 22:00`, which is the next time that the local clock shows it. None
    without words: until it is ended. at_s: the time of day now, in seconds since the epoch. Raises ValueError."""
    if not words:
        return None
    if len(words) == 1 and words[0] != "until":
        return at_s + parse_seconds(words[0])
    found = TIME_OF_DAY.fullmatch(words[-1])
    if words[0] != "until" or len(words) != 2 or found is None or int(found[1]) > 23 or int(found[2]) > 59:
        raise ValueError(f"{' '.join(words)!r} is not a duration such as 90m or 1h, or a time such as until 22:00")
    return next_time(int(found[1]), int(found[2]), at_s)


def in_words(then_s: float, now_s: float) -> str:
    """A point in time, for people: with its day if that is not within the next 24 hours, and its year if that is
    another one."""
    then = datetime.fromtimestamp(then_s)
    if then_s - now_s <= 86400:
        return f"{then:%H:%M}"
    if then_s - now_s <= 6 * 86400:
        return f"{then:%A %H:%M}"
    year = f" {then.year}" if then.year != datetime.fromtimestamp(now_s).year else ""
    return f"{then.day} {then:%B}{year}"


DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
WINDOWS_MAX = 14
WINDOW = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))? +)?(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?")
EXAMPLES = "22-07, 22:30-06:15, or mon-fri 22-07, sat-sun 0-24"


@dataclass(frozen=True)
class Hours:
    """windows: first and last minute of the week, the last one excluded and perhaps in the next week. text: as the
    volunteer wrote it."""

    windows: tuple[tuple[int, int], ...]
    text: str

    def contain(self, at_s: float) -> bool:
        """Whether a time is within the hours. at_s: seconds since the epoch."""
        return self._has(_minute_of_week(at_s))

    def begin_after(self, at_s: float) -> float:
        """The time at which the hours begin next, in seconds since the epoch; `at_s` itself within them."""
        return _begin(self, int(at_s // 60)) if not self.contain(at_s) else at_s

    def _has(self, minute: int) -> bool:
        return any(begin <= at < end for begin, end in self.windows for at in (minute, minute + WEEK_MINUTES))


def read_hours(text: str) -> Hours:
    """Raises ValueError."""
    entries = [entry.strip().lower() for entry in text.split(",")]
    if len(entries) > WINDOWS_MAX:
        raise ValueError(f"at most {WINDOWS_MAX} windows, and not {len(entries)}")
    return Hours(tuple(window for entry in entries for window in _windows(entry)), text.strip())


def _windows(entry: str) -> list[tuple[int, int]]:
    found = WINDOW.fullmatch(entry)
    if found is None:
        raise ValueError(f"{entry!r} is not hours such as {EXAMPLES}")
    first, last, *clock = found.groups()
    begin, end = _minutes(clock[0], clock[1]), _minutes(clock[2], clock[3])
    if begin == end or (begin, end) == (DAY_MINUTES, 0):
        raise ValueError(f"{entry!r} begins when it ends; for the whole day, write 0-24")
    length = end - begin if end > begin else end - begin + DAY_MINUTES
    return [(day * DAY_MINUTES + begin, day * DAY_MINUTES + begin + length) for day in _days(first, last)]


def _minutes(hour: str, minute: str | None) -> int:
    found = int(hour) * 60 + int(minute or 0)
    if int(minute or 0) > 59 or found > DAY_MINUTES:
        raise ValueError(f"{hour}:{minute or '00'} is no time of day")
    return found


def _days(first: str | None, last: str | None) -> list[int]:
    if first is None:
        return list(range(7))
    for day in (first, last):
        if day is not None and day not in DAYS:
            raise ValueError(f"{day!r} is no day: write {', '.join(DAYS)}")
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return [(begin + more) % 7 for more in range((end - begin) % 7 + 1)]


def _minute_of_week(at_s: float) -> int:
    local = datetime.fromtimestamp(at_s)
    return local.weekday() * DAY_MINUTES + local.hour * 60 + local.minute


@lru_cache(maxsize=4)
def _begin(hours: Hours, minute: int) -> float:
    """Looks at each minute, because the local clock may change in between. It may leave out the only window of a week,
    so two weeks and a day are looked at."""
    return next(60.0 * at for at in range(minute, minute + 2 * WEEK_MINUTES + DAY_MINUTES) if hours.contain(60.0 * at))
