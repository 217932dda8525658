"""Counts and reports the parts of a source that cannot be read, and ends the work when there are too many."""

from __future__ import annotations

from collections.abc import Callable

from thinwire_proto.errors import ConfigError

SHOWN_MAX = 20
"""Binary files that are reported one by one."""


class TooManyProblems(ConfigError):
    """More of the sources cannot be read than `--bad-max` allows."""


class SourceFailed(ConfigError):
    """A source cannot be reached or stopped answering. What it holds may be in order."""


class Problems:
    """bad_max: how many documents, or other parts of a file, may be skipped. say: shows a line to the user."""

    def __init__(self, bad_max: int, say: Callable[[str], None]) -> None:
        self._bad_max = bad_max
        self._say = say
        self.bad = 0
        self.binary_files = 0

    def skip(self, where: str, what: str) -> None:
        """Report a part that cannot be read. where: file and line, row or row group. Raises TooManyProblems."""
        self.bad += 1
        if self.bad > self._bad_max:
            raise TooManyProblems(
                f"{where}: {what}; this is the {self.bad}{_ordinal(self.bad)} part that cannot be read. Repair the "
                f"source, or allow more with --bad-max"
            )
        self._say(f"skipped: {where}: {what} ({self.bad} of at most {self._bad_max})")

    def skip_binary(self, where: str) -> None:
        """Report a file that is not text. These are not counted as bad: a folder may hold pictures beside its text."""
        self.binary_files += 1
        if self.binary_files <= SHOWN_MAX:
            self._say(f"skipped: {where}: is binary, not text")
        elif self.binary_files == SHOWN_MAX + 1:
            self._say("skipped: more binary files; they are only counted from here on")


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
