"""A run, and the commands of the coordinator on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.coordinator_command import Command
from support.sealed_run import make_run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a run of two steps."""
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, 2)
    return folder
