"""Tests of how the programs end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from thinwire_common.program import INTERRUPTED, UNREAD, ending_signals, run_program
from thinwire_coordinator import __main__ as coordinator
from thinwire_node import __main__ as node
from thinwire_planner import __main__ as planner
from thinwire_proto.errors import ConfigError, UsageError

PROGRAMS = {"thinwire-coordinator": coordinator, "thinwire-node": node, "thinwire": planner}


@pytest.fixture(autouse=True)
def _keep_handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The programs would take away pytest's own handlers of logs, and leave theirs of signals."""
    monkeypatch.setattr(logging, "basicConfig", lambda **given: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def ended(capsys: pytest.CaptureFixture[str], main: Callable[[], None]) -> tuple[object, str]:
    """The exit status of a program, and what it wrote to stderr."""
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("no\nsuch thing"), 1, "thinwire-x: no such thing\n"),
        (UsageError("--x is wrong"), 2, "thinwire-x: --x is wrong\n"),
        (OSError(28, "No space left"), 1, "thinwire-x: the disk fails: [Errno 28] No space left; free some space"),
        (
            OSError(13, "Permission denied", "/there"),
            1,
            "thinwire-x: [Errno 13] Permission denied: '/there'; check the path",
        ),
        (KeyboardInterrupt(), INTERRUPTED, ""),
    ],
)
def test_an_error_becomes_an_exit_status_and_a_line(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, errors = ended(capsys, lambda: run_program("thinwire-x", raising(error)))
    assert found == status
    assert errors.startswith(said)
    assert errors.count("\n") == bool(said)


@pytest.mark.parametrize(
    "arguments", [["serve", "--state-dir", "x", "--listen", "foo"], ["serve"], ["status", "localhost"]]
)
def test_a_wrong_option_of_the_coordinator_ends_it_with_the_status_of_a_wrong_command_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["thinwire-coordinator", *arguments])
    assert ended(capsys, coordinator.main)[0] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is on Linux only")
def test_output_that_cannot_be_written_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        status, said = ended(capsys, lambda: run_program("thinwire-x", lambda: print("x")))
        full.flush()  # as the interpreter does at its end
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("thinwire-x: the disk fails: [Errno 28] No space left")


def test_output_that_nobody_reads_ends_a_program_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert ended(capsys, lambda: run_program("thinwire-x", lambda: print("x"))) == (UNREAD, "")
        unread.flush()


def test_a_hang_up_ends_a_daemon_unless_it_was_started_to_ignore_that() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert ending_signals() == (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    assert ending_signals() == (signal.SIGINT, signal.SIGTERM)
