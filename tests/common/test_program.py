"""Tests of how the programs end."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from thinwire_common.program import INTERRUPTED, UNREAD, ending_signals, run_program
from thinwire_coordinator import __main__ as coordinator
from thinwire_node import __main__ as node
from thinwire_node.storage.enrolment import FILE, keep
from thinwire_node.storage.state import OF_COORDINATORS
from thinwire_planner import __main__ as planner
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.identity.invite import Invite

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


@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_ends_each_program_without_a_traceback(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{PROGRAMS[name].__package__}.cli.parser.parser", raising(KeyboardInterrupt()))
    assert ended(capsys, PROGRAMS[name].main) == (128 + signal.SIGINT, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", "x"],
        ["--threads", "0"],
        ["--memory-max", "abc"],
        ["--device", "foo"],
        ["--device", "cuda:x"],
        ["--metrics", "0.0.0.0:0"],
        ["--state-dir", "not/enrolled"],
        ["an-invite"],
        ["twi1_mistyped"],
        ["example.org:7700"],
        ["@nosuch"],
        ["@empty"],
        ["--state-dir", "a-coordinator's"],
        ["--state-dir", "of-another"],
    ],
)
def test_a_wrong_option_of_a_node_ends_it_for_good(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("")
    Path("a-coordinator's").mkdir()
    Path("a-coordinator's", OF_COORDINATORS).touch()
    Path("of-another").mkdir()
    keep(Path("of-another"), Invite("example.org:7700", bytes(32), bytes(16)))
    place = ["127.0.0.1:9"] if "--" in arguments[0] and "not/enrolled" not in arguments else []
    home = [] if "not/enrolled" in arguments else ["--state-dir", "home"]
    monkeypatch.setattr(sys, "argv", ["thinwire-node", "start", *place, *home, *arguments])
    status, said = ended(capsys, node.main)
    assert (status, said.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "arguments", [["serve", "--state-dir", "x", "--listen", "foo"], ["serve"], ["status", "localhost"]]
)
def test_a_wrong_option_of_the_coordinator_ends_it_with_the_status_of_a_wrong_command_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["thinwire-coordinator", *arguments])
    assert ended(capsys, coordinator.main)[0] == 2


def test_what_may_be_mended_elsewhere_is_worth_another_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text("damaged")
    monkeypatch.setattr(sys, "argv", ["thinwire-node", "start", "127.0.0.1:9", "--state-dir", str(tmp_path)])
    assert ended(capsys, node.main)[0] == 1


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


def test_characters_that_the_output_cannot_have_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    files = io.BytesIO(), io.BytesIO()
    for name, file in zip(("stdout", "stderr"), files, strict=True):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(file, encoding="ascii", write_through=True))
    run_program("thinwire-x", lambda: print("3 → 4"))
    with pytest.raises(SystemExit):
        run_program("thinwire-x", raising(ConfigError("is “4”")))
    assert [file.getvalue() for file in files] == [b"3 ? 4\n", b"thinwire-x: is ?4?\n"]


def ended_alone(code: str, *arguments: str, modules: str = "") -> tuple[int, str, str]:
    """The exit status of a process of its own, and what it wrote. modules: a folder with more of them."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([modules, *sys.path])}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


SWALLOWS = """
import os, signal
from thinwire_common.program import run_program

def command():
    import swallows
    print("went on", flush=True)

run_program("thinwire-x", command)
"""


@pytest.mark.usefixtures("usual_signals")
def test_ctrl_c_in_an_import_that_swallows_it_ends_the_program(tmp_path: Path) -> None:
    """torch catches whatever the import of numpy raises."""
    (tmp_path / "swallows.py").write_text("try:\n    import interrupted\nexcept BaseException:\n    pass\n")
    (tmp_path / "interrupted.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    assert ended_alone(SWALLOWS, modules=str(tmp_path)) == (INTERRUPTED, "", "")


INTERRUPTED_AT_ITS_BEGINNING = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "thinwire_common.logs":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from {module} import main
main()
"""


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("name", ["thinwire-coordinator", "thinwire-node"])
def test_ctrl_c_while_a_program_begins_prints_no_traceback(name: str) -> None:
    code = INTERRUPTED_AT_ITS_BEGINNING.format(module=PROGRAMS[name].__name__)
    assert ended_alone(code, "status", "--state-dir", "/nowhere") == (INTERRUPTED, "", "")


INTERRUPTED_AT_ITS_END = """
import os, signal, sys
from thinwire_common.program import run_program

class Last:
    def __del__(self, interrupt=signal.raise_signal, number=signal.SIGINT):
        interrupt(number)

def command():
    if len(sys.argv) > 1:
        raise KeyboardInterrupt

last = Last()
run_program("thinwire-x", command)
"""


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("interrupted",), INTERRUPTED)])
def test_another_ctrl_c_while_the_interpreter_ends_changes_nothing(arguments: tuple[str, ...], status: int) -> None:
    assert ended_alone(INTERRUPTED_AT_ITS_END, *arguments) == (status, "", "")


def test_a_hang_up_ends_a_daemon_unless_it_was_started_to_ignore_that() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert ending_signals() == (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    assert ending_signals() == (signal.SIGINT, signal.SIGTERM)
