"""Counts and reports the parts of a source that cannot be read, and ends the work when there are too many."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from thinwire_proto.errors import ConfigError

SHOWN_MAX = 20
"""Files of one kind, such as binary ones, that are reported one by one."""


class TooManyProblems(ConfigError):
    """More of the sources cannot be read than `--bad-max` allows."""


class SourceFailed(ConfigError):
    """A source cannot be reached or stopped answering. What it holds may be in order."""


class Counts(NamedTuple):
    """The numbers of things that were found in a source besides documents.

    bad: parts that cannot be read. null_texts: documents without a text. as_text: files that were read as plain text
    although they look like another format. Of conversations: no_response: without a response, or with an empty one;
    unrendered: that the chat template cannot write; equal: preferences whose responses are the same.
    """

    bad: int = 0
    binary_files: int = 0
    null_texts: int = 0
    as_text: int = 0
    no_response: int = 0
    unrendered: int = 0
    equal: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(one + more for one, more in zip(self, other, strict=True)))


class Problems:
    """bad_max: how many documents, or other parts of a file, may be skipped. say: shows a line to the user."""

    def __init__(self, bad_max: int, say: Callable[[str], None]) -> None:
        self._bad_max = bad_max
        self._say = say
        self.counts = Counts()

    @property
    def bad(self) -> int:
        return self.counts.bad

    def skip(self, where: str, what: str) -> None:
        """Report a part that cannot be read. where: file and line, row or row group. Raises TooManyProblems."""
        self.counts = self.counts.plus(Counts(bad=1))
        if self.bad > self._bad_max:
            raise TooManyProblems(
                f"{where}: {what}; {self.bad} parts cannot be read. Repair the source, or allow more with --bad-max"
            )
        self._say(f"skipped: {where}: {what} ({self.bad} of at most {self._bad_max})")

    def skip_binary(self, where: str) -> None:
        """Report a file that is not text. These are not counted as bad: a folder may hold pictures beside its text."""
        self.counts = self.counts.plus(Counts(binary_files=1))
        self._say_some(self.counts.binary_files, f"skipped: {where}: is binary, not text", "binary files")

    def leave_null(self) -> None:
        """Count a document without a text. Data sets mark missing texts like this, so nothing is damaged."""
        self.counts = self.counts.plus(Counts(null_texts=1))

    def leave_out(self, where: str, count: str, what: str) -> None:
        """Report a conversation without anything to learn. These are no damage either. count: its field of `Counts`."""
        self.counts = self.counts._replace(**{count: (number := getattr(self.counts, count) + 1)})
        self._say_some(number, f"left out: {where}: {what}", "such conversations")

    def read_as_text(self, where: str, what: str) -> None:
        """Report a file that is read as plain text although it looks like another format."""
        self.counts = self.counts.plus(Counts(as_text=1))
        self._say_some(self.counts.as_text, f"note: {where}: is read as plain text, {what}", "such files")

    def _say_some(self, number: int, line: str, files: str) -> None:
        if number <= SHOWN_MAX:
            self._say(line)
        elif number == SHOWN_MAX + 1:
            self._say(f"{line.partition(':')[0]}: more {files}; they are only counted from here on")
