"""The pause of a run: the organizer's decision that no round begins for a while."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Protocol

KEY = "pause"
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


class Settings(Protocol):
    """Texts by name, which last."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, value: str) -> None: ...


class Pauses:
    """The pause of a state directory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def at(self, now: float) -> Pause | None:
        """The pause that holds at a Unix time, in seconds."""
        kept = self._settings.get(KEY)
        pause = Pause(**json.loads(kept)) if kept else None
        return pause if pause is not None and pause.holds(now) else None

    def begin(self, pause: Pause) -> None:
        """Pause the run. An earlier pause is replaced."""
        self._settings.put(KEY, json.dumps(asdict(pause)))

    def end(self) -> None:
        """Let the run go on."""
        self._settings.put(KEY, "")
