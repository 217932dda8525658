"""Commands of the coordinator that a test runs in its own process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from thinwire_coordinator.__main__ import main


class Command:
    """Runs `thinwire-coordinator`."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = patch, capsys
        self.err = ""
        """What the last command has printed as errors."""

    def __call__(self, *words: str | Path) -> str:
        """Run a command. Returns what it prints."""
        self._patch.setattr(sys, "argv", ["thinwire-coordinator", *map(str, words)])
        self._capsys.readouterr()
        try:
            main()
        finally:
            out, self.err = self._capsys.readouterr()
        return out

    def refused(self, *words: str | Path) -> str:
        """Run a command that must fail. Returns what it prints as errors."""
        with pytest.raises(SystemExit):
            self(*words)
        return self.err
