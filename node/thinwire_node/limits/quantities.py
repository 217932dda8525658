"""Reads the quantities of limits, and writes points in time for people."""

from __future__ import annotations

import re
from datetime import datetime

from thinwire_common.units import parse_seconds

RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?(bit|b)(?:/s|ps)?", re.IGNORECASE)
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
RATE_LEAST = 2000.0
"""Bytes per second. A slower line cannot carry the heartbeats and the TLS handshake in time."""
TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d\d)")


def read_rate(text: str) -> float:
    """Bytes per second of a rate such as 500kB/s or 10Mbit/s. Raises ValueError."""
    found = RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a rate with its unit, such as 500kB/s or 10Mbit/s")
    rate = float(found[1]) * PREFIXES[(found[2] or "").lower()] / (8 if found[3].lower() == "bit" else 1)
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
    now = datetime.fromtimestamp(at_s)
    then = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
    if then <= now:
        then = datetime.fromtimestamp(at_s + 86400).replace(hour=then.hour, minute=then.minute, second=0, microsecond=0)
    return then.timestamp()


def in_words(then_s: float, now_s: float) -> str:
    """A point in time, for people: with its day if that is not within the next 24 hours."""
    then = datetime.fromtimestamp(then_s)
    if then_s - now_s <= 86400:
        return f"{then:%H:%M}"
    if then_s - now_s <= 6 * 86400:
        return f"{then:%A %H:%M}"
    return f"{then.day} {then:%B}"
