"""Tests of options, environment variables and defaults of both programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thinwire_common.options import read_options, variable
from thinwire_coordinator.cli import parser as coordinator
from thinwire_coordinator.cli.options import ServeOptions, StatusOptions
from thinwire_node.cli import parser as node
from thinwire_node.cli.options import DEFAULT_STATE_DIR, StartOptions
from thinwire_proto.errors import ConfigError, UsageError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (ServeOptions, StatusOptions, StartOptions):
        for name in options.model_fields:
            monkeypatch.delenv(variable(options, name), raising=False)


def start(*given: str) -> StartOptions:
    return read_options(StartOptions, node.parser().parse_args(["start", *given]))


def status(*given: str) -> StatusOptions:
    return read_options(StatusOptions, coordinator.parser().parse_args(["status", *given]))


def serve(*given: str) -> ServeOptions:
    return read_options(ServeOptions, coordinator.parser().parse_args(["serve", *given]))


def test_an_option_overrides_its_variable_which_overrides_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start("a:1").micro_batch is None
    monkeypatch.setenv("THINWIRE_NODE_MICRO_BATCH", "3")
    monkeypatch.setenv("THINWIRE_NODE_INVITE", "b:2")
    monkeypatch.setenv("THINWIRE_NODE_NAME", "")  # counts as not set
    assert (start().micro_batch, start().invite, start().name) == (3, "b:2", None)
    assert (start("a:1", "--micro-batch", "5").micro_batch, start("a:1").invite) == (5, "a:1")


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_the_error_for_a_bad_value_names_its_source(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"^--wait-for: .*not '{value}'$"):
        serve("--state-dir", "x", f"--wait-for={value}")
    monkeypatch.setenv("THINWIRE_COORDINATOR_WAIT_FOR", value)
    with pytest.raises(ConfigError, match=f"^THINWIRE_COORDINATOR_WAIT_FOR: .*not '{value}'$"):
        serve("--state-dir", "x")


def chosen(arguments: list[str]) -> tuple[Path, Path | None]:
    """The state directory and the state slots that `start` would use."""
    given = node.parser().parse_args(["start", "a:1", *arguments])
    options = node.start_options(given)
    return options.state_dir, options.state_slots


def test_state_slots_and_a_state_directory_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    home = DEFAULT_STATE_DIR.expanduser()
    assert chosen([]) == (home, None)
    assert chosen(["--state-slots", "s"]) == (home, Path("s"))
    with pytest.raises(SystemExit):
        chosen(["--state-slots", "s", "--state-dir", "d"])
    monkeypatch.setenv("THINWIRE_NODE_STATE_SLOTS", "e")
    assert chosen([]) == (home, Path("e"))
    assert chosen(["--state-dir", "d"]) == (Path("d"), None)
    monkeypatch.setenv("THINWIRE_NODE_STATE_DIR", "f")
    assert chosen(["--state-slots", "s"])[1] == Path("s")
    with pytest.raises(ConfigError, match="THINWIRE_NODE_STATE_DIR and THINWIRE_NODE_STATE_SLOTS are both set"):
        chosen([])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--give-up-after", "nan"], "--give-up-after: .*finite number"),
        (["--give-up-after", "inf"], "--give-up-after: .*finite number"),
        (["--give-up-after", "-5"], "--give-up-after: .*greater than or equal to 0, not '-5'"),
        (["--threads", "100000"], "--threads: .*less than or equal to 1024, not '100000'"),
        (["--name", "J\udcfcrgen"], "--name: it is not UTF-8"),  # as Python reads a Latin-1 argument
    ],
)
def test_a_value_that_the_node_could_not_work_with_is_refused_at_the_door(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen(arguments)


@pytest.mark.parametrize("program", ["thinwire_coordinator", "thinwire_node"])
@pytest.mark.parametrize("given", ["--version", "--help", "status"])
def test_commands_that_do_not_need_torch_do_not_load_it(program: str, given: str, tmp_path: Path) -> None:
    where = {"thinwire_coordinator": ["127.0.0.1:9"], "thinwire_node": ["--state-dir", str(tmp_path)]}[program]
    script = (
        "import sys\n"
        f"from {program}.__main__ import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, given, *(where if given == "status" else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    if given == "--version":
        assert done.stdout.split()[1].count(".") == 2
