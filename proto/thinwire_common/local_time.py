"""Points in time by this machine's clock."""

from __future__ import annotations

import time
from datetime import datetime, timedelta


def follow_zone() -> None:
    """Take the time zone that the system has now. Without this, a process keeps the one that it began with."""
    if hasattr(time, "tzset"):  # not on Windows
        time.tzset()


def next_time(hour: int, minute: int, at_s: float) -> float:
    """The next time after `at_s` that the local clock shows this, both in seconds since the epoch. A day of the clock
    may have 23 or 25 hours. Raises ValueError."""
    now = datetime.fromtimestamp(at_s)
    then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (then if then > now else then + timedelta(days=1)).timestamp()
