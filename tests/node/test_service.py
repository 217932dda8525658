"""The definitions of a node's service are what their managers take, whatever the paths are called."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path, PureWindowsPath
from xml.etree import ElementTree

import pytest

from thinwire_node.cli import owner
from thinwire_node.cli import service as command
from thinwire_node.cli.parser import parser, start_options
from thinwire_node.limits.keeper import LimitsKeeper, LimitsSource
from thinwire_node.limits.limits import Limits, LimitsFile
from thinwire_node.service.definition import TASK_NAMESPACE, Service, launchd_plist, systemd_unit, windows_task
from thinwire_node.service.managers import Launchd, ServiceManager, Systemd, TaskScheduler
from thinwire_proto.errors import LocalError, UsageError
from thinwire_proto.identity.invite import Invite

INVITE = str(Invite("swarm.example.org:7700", b"f" * 32, b"t" * 16))
WORDS = ["-m", "thinwire_node", "start", "--name", 'a "b" 100% $HOME \\ <&> ü', "--state-dir", "/tmp/my node"]


def analyzed(unit: Path) -> subprocess.CompletedProcess[str]:
    """What systemd says of a unit."""
    return subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env=os.environ | {"XDG_RUNTIME_DIR": str(unit.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_systemd_reads_the_command_back(tmp_path: Path) -> None:
    """Checks the unit with systemd itself, which warns of whatever it does not take literally."""
    unit = tmp_path / "thinwire-node.service"
    unit.write_text(systemd_unit(Service([sys.executable, *WORDS], tmp_path)), encoding="utf-8")
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    read = shlex.split(line.removeprefix("ExecStart="))
    assert [word.replace("%%", "%").replace("$$", "$") for word in read] == [sys.executable, *WORDS]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = analyzed(unit)
    about_unit = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, about_unit) == (0, []), done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    "name", ["plain", "a b", "100%", "co$t", "$HOME", "ü", "back\\slash", 'q"uote', "q'uote", "tab\t"]
)
def test_systemd_finds_the_program_whatever_its_path_or_the_unit_is_refused(tmp_path: Path, name: str) -> None:
    program = tmp_path / name / "python"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    unit = tmp_path / "thinwire-node.service"
    if set(name) & set("\\\"'\t"):
        with pytest.raises(LocalError, match="systemd starts no program whose path has the character"):
            systemd_unit(Service([str(program), *WORDS], tmp_path))
        return
    unit.write_text(systemd_unit(Service([str(program), *WORDS], tmp_path)), encoding="utf-8")
    done = analyzed(unit)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


def _settings(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)


def test_a_file_in_the_home_folder_is_no_part_of_a_service(tmp_path: Path) -> None:
    """systemd starts a user's units there, unless they name another folder."""
    (tmp_path / "argparse.py").write_text("raise SystemExit('a file of the owner')")
    service = Service([sys.executable, "-m", "thinwire_node", "--version"], tmp_path / "node")
    folder = _settings(systemd_unit(service)).get("WorkingDirectory", tmp_path)
    done = subprocess.run(service.command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("thinwire-node "), done.stderr
    assert plistlib.loads(launchd_plist(service).encode())["WorkingDirectory"] == "/"
    task = ElementTree.fromstring(windows_task(service).encode("utf-16"))
    assert task.findtext("{*}Actions/{*}Exec/{*}WorkingDirectory") == str(tmp_path / "node")


def test_the_node_alone_sets_its_niceness() -> None:
    """A node that has begun at a low priority may not rise to the one that its owner wants."""
    assert "Nice" not in _settings(systemd_unit(Service([sys.executable], Path("/tmp"))))


def test_launchd_gets_the_command_and_starts_it_again_after_a_failure_only() -> None:
    found = plistlib.loads(launchd_plist(Service(["/usr/bin/python3", *WORDS], Path("/tmp/my node"))).encode())
    assert found["ProgramArguments"] == ["/usr/bin/python3", *WORDS]
    assert (found["KeepAlive"], found["ThrottleInterval"]) == ({"SuccessfulExit": False}, 30)
    assert found["StandardErrorPath"] == "/tmp/my node/service.log"


def test_windows_gets_the_command_as_its_programs_split_it() -> None:
    program, folder = r"C:\Program Files\Python\pythonw.exe", PureWindowsPath(r"C:\Users\Åsa B\.thinwire\node")
    text = windows_task(Service([program, *WORDS], folder, r"HOME\Åsa B"))
    task = ElementTree.fromstring(text.encode("utf-16"))  # as the file has it
    names = {"t": TASK_NAMESPACE}
    assert task.findtext("t:Actions/t:Exec/t:Command", namespaces=names) == program
    arguments = task.findtext("t:Actions/t:Exec/t:Arguments", namespaces=names)
    assert arguments == subprocess.list2cmdline(WORDS)
    assert task.findtext("t:Settings/t:ExecutionTimeLimit", namespaces=names) == "PT0S"  # by default three days
    assert task.findtext("t:Triggers/t:LogonTrigger/t:UserId", namespaces=names) == r"HOME\Åsa B"


def asked(*words: str) -> str:
    arguments = parser().parse_args(["install-service", *words])
    return command.install(start_options(arguments), arguments, only_print=arguments.only_print)


def test_print_shows_the_options_and_not_the_invite_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    shown = asked("--print", INVITE, "--state-dir", str(folder), "--name=-x", "--metrics-tls", "tls")
    tls = Path("tls").absolute()  # a service runs in another folder
    assert f'"@{folder}/invite" "--state-dir" "{folder}"' in shown
    assert '"--name=-x"' in shown
    assert f'"--metrics-tls={tls}"' in shown
    assert INVITE not in shown
    assert not folder.exists()


def test_the_limits_are_in_their_file_and_what_set_changes_holds_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = _systemctl(tmp_path, monkeypatch, "exit 0")
    folder, file = tmp_path / "node", LimitsFile(tmp_path / "node" / "limits.toml")
    asked(INVITE, "--state-dir", str(folder), "--max-upload", "1MB/s", "--hours=22-07", "--priority=low", "--rounds=3")
    assert file.read() == {"max_upload": "1MB/s", "hours": "22-07", "priority": "low"}
    owner.set_limits(folder, None, ["max-upload=100kB/s", "hours=none"])
    words = shlex.split(_settings(definition.read_text())["ExecStart"])
    started = parser().parse_args(words[words.index("start") :])
    assert started.rounds == "3"
    given = {name: text for name, text in vars(started).items() if name in Limits.model_fields}
    LimitsKeeper(LimitsSource(given=given), folder, time.time, print, print)
    assert file.read() == {"max_upload": "100kB/s", "priority": "low"}
    own = tmp_path / "own.toml"
    asked("--state-dir", str(folder), INVITE, "--limits", str(own), "--threads", "2")
    assert LimitsFile(own).read() == {"threads": "2"}
    assert file.read() == {"max_upload": "100kB/s", "priority": "low"}


def test_a_service_without_an_invite_wants_a_node_that_has_enrolled(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has not enrolled"):
        asked("--state-dir", str(tmp_path))


def test_without_a_manager_the_invite_is_private_and_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(command, "manager", Systemd)
    with pytest.raises(LocalError, match=r"has no systemctl; .* --print"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    kept = tmp_path / "node" / "invite"
    assert kept.read_text().strip() == INVITE
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def _program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """A machine with a service manager that does what the script says, whose home folder is `folder`."""
    program = folder / "bin" / name
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(folder))


def _systemctl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A machine whose systemctl does what the script says. Returns the place of the definition."""
    _program(folder, monkeypatch, "systemctl", script)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr(command, "manager", Systemd)
    return folder / "config" / "systemd" / "user" / "thinwire-node.service"


NO_BUS = "echo 'Failed to connect to bus: No medium found' >&2; exit 1"


def test_a_login_without_systemd_is_told_and_keeps_no_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = _systemctl(tmp_path, monkeypatch, NO_BUS)
    with pytest.raises(LocalError, match=r"No medium found; systemd serves this user only in a login .* --print"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    assert not definition.exists()
    definition.write_text("of a service that runs")
    with pytest.raises(LocalError, match="No medium found"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    assert definition.read_text() == "of a service that runs"
    with pytest.raises(LocalError, match="No medium found; systemd serves this user only"):
        command.uninstall()
    assert definition.read_text() == "of a service that runs"


def test_a_service_that_does_not_start_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = tmp_path / "asked-for"
    script = f'echo "$*" >> {asked_for}; [ "$2" != restart ]'
    definition = _systemctl(tmp_path, monkeypatch, script)
    with pytest.raises(LocalError, match="restart thinwire-node"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    assert not definition.exists()
    assert asked_for.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable thinwire-node.service",
        "--user restart thinwire-node.service",
        "--user daemon-reload",
        "--user disable --now thinwire-node.service",
        "--user daemon-reload",
    ]


SYSTEMCTL = """
case "$*" in
  *"enable --now"*) [ -e {0}/runs ] || cp "$UNIT" {0}/runs;;
  *restart*) ! grep -q broken "$UNIT" && cp "$UNIT" {0}/runs;;
  *disable*) rm -f {0}/runs;;
esac
"""
"""It starts a unit that is stopped, and leaves one that runs as it is, unless it is to be restarted."""


def test_a_service_that_is_installed_again_runs_with_the_new_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = _systemctl(tmp_path, monkeypatch, SYSTEMCTL.format(tmp_path))
    monkeypatch.setenv("UNIT", str(definition))
    for name in ("first", "second"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"), "--name", name)
        assert f'"--name={name}"' in (tmp_path / "runs").read_text()
    (tmp_path / "runs").unlink()
    with pytest.raises(LocalError, match="restart"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"), "--name", "broken")
    assert '"--name=second"' in (tmp_path / "runs").read_text()  # and the one before runs again


SCHTASKS = """
case $1 in
  /Create) cp "$5" {0}/task;;
  /Run) [ -e {0}/runs ] || cp {0}/task {0}/runs;;
  /End) [ -e {0}/runs ] && rm {0}/runs;;
  /Query) [ -e {0}/task ];;
  /Delete) rm {0}/task;;
esac
"""
"""A task that runs goes on, and is not run a second time (IgnoreNew)."""
LAUNCHCTL = """
case $1 in
  bootstrap) cp "$3" {0}/task;;
  print) [ -e {0}/task ];;
  bootout) rm {0}/task;;
esac
"""


def test_windows_runs_the_new_task_in_place_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, monkeypatch, "schtasks", SCHTASKS.format(tmp_path))
    for word in ("first", "second"):
        TaskScheduler().install(Service(["pythonw.exe", word], tmp_path / "D" / "node"))
        assert word in (tmp_path / "runs").read_text(encoding="utf-16")


@pytest.mark.parametrize(
    ("kind", "name", "script"), [(TaskScheduler, "schtasks", SCHTASKS), (Launchd, "launchctl", LAUNCHCTL)]
)
def test_a_service_is_removed_wherever_its_state_is_and_also_if_the_system_has_forgotten_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ServiceManager], name: str, script: str
) -> None:
    _program(tmp_path, monkeypatch, name, script.format(tmp_path))
    manager, task = kind(), tmp_path / "task"
    monkeypatch.setattr(command, "manager", kind)
    for lost in (None, manager.file(), task):
        manager.install(Service(["pythonw.exe"], tmp_path / "D" / "node"))
        if lost is not None:
            lost.unlink()
        command.uninstall()
        assert not task.exists()
        assert not manager.file().exists()
    with pytest.raises(LocalError, match="no service to remove"):
        command.uninstall()


def test_a_service_that_cannot_be_removed_keeps_its_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, monkeypatch, "launchctl", "[ $1 != bootout ]")
    Launchd().install(Service(["python3"], tmp_path / "node"))
    with pytest.raises(LocalError, match="bootout"):
        Launchd().uninstall()
    assert Launchd().file().exists()


def test_a_thinwire_in_a_cache_is_not_made_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/a/.cache/uv/archive-v0/x")
    with pytest.raises(LocalError, match="uv tool install"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))


def test_there_is_nothing_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="no service to remove"):
        command.uninstall()
